"""Serializers of dates, times and moments, and of what is keyed by time: windows and timers.

The classes of Java's calendar stand beside their serializers. Watermarks and clocks are not here, but in `streamjobs`.
"""
