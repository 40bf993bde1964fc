"""What real programs do beside the fight over few keys: accounts, a counter, sets, locks, watches.

Each duty writes down what it did and saw (`deed`), and has a judge of its own that knows what must never be seen.
"""
