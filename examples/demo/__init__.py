"""A ticket sale and a vote, on three nodes whose leader is killed twice, or on the embedded store: the same program.

`scenario.py` is what a service would write, `ledger.py` what the program knows itself and checks the database against,
`director.py` what happens
to the nodes, `view.py` what one sees of it.
"""
