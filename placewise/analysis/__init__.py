"""Analyses of models and plans: inspect, compare, explain, diff, measure, report."""
