"""Sharding rules, a module per family of kinds."""
