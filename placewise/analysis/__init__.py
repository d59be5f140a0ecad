"""What is asked of models and plans: inspect, compare, explain, diff, predict, report."""
