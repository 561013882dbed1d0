"""Serializers of dates, times, timestamps, windows and timers."""
