"""Random job graphs of sources, operators, windows and joins, with a model in plain Python.

A plan is data made by its seed: the nodes of a graph, the events of its sources, and the cuts at which the job is
restored with another parallelism or backend. The program uses the public API only. The model computes the content of
every output after every event.
"""
