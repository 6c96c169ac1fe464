"""From GPUs to ResourceSlices: pure functions in the middle, one reconciling publisher at the edge.

publisher       keeps the node's slices as they should be, whatever happens to them
beside          watches what others say of this node's GPUs, and withholds what is given out twice
others          what others say, as conditions of GPUs (pure)
accepted        what the API server makes of our devices
observed        the slices as the API server has them
slices          devices -> slices of a pool; what to write (pure)
wanted          which devices are to be in the slices
order           which device stands first, by what is in use of each
taints          conditions of GPUs as taints of devices (pure)
devices         GPUs -> devices: attributes, capacities, policies (pure)
"""
