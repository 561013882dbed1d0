"""Random job graphs: sources, operators, windows and joins in any combination, beside a model in plain Python.

A plan is data, made by its seed: the nodes of a graph, the events of its sources, and the cuts at which the job is
restored with another parallelism or backend. The program is built with the public API only. The model computes what
every output must contain after every event.
"""
