"""What shows that the product keeps its promises: simulated schedules, and real jobs under real kills."""
