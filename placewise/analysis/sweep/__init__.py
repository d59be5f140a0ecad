"""Sweeps: one model at several sizes on several clusters."""
