"""Pages for people: one HTML file with plots and tables, which loads nothing and runs nothing.

What is here knows HTML and SVG, and neither state nor jobs: who has figures makes sections of them. Every text that
comes in is escaped, and every plot has a table with the same numbers beside it.
"""
