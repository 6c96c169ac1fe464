"""TCP ports that anybody in the cluster may reach, and what that may cost.

listener        listening sockets, with TLS or without; they can be left without hanging up on anybody
connection      one connection: whose turn it is, and how long its client may take
room            all connections of a port: how many, how many bytes, and who goes when there is no room
"""
