"""Analyses of models and plans: inspect, compare, explain, diff, predict, measure, report."""
