"""Figures of speed, memory and quality: programs that measure, with what was predicted before."""
