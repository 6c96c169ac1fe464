"""What containers use of their GPUs, beside what they may.

    service  who looks, when somebody asks
    node     what this node tells of it: records, processes, regions
    joined   who uses what, from all that was found (pure)
    sample   what NVML knows, as seldom as it may be asked
    pods     containers of pods, as the API server knows them
    shares   what containers were given and use, all together (pure)
    model    what is known of it

Upper ones import lower ones.
"""
