"""Fuzzing: real files of every format, damaged in every way, through the whole journey from a file to a judgement."""
