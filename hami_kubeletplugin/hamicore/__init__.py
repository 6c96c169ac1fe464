"""HAMi-core, the library that keeps limits: its contract, its files on the host, and what containers get of it.

    enforcement     it as `claims.enforcement.Enforcement`
    storage         where the region of a container use is (pure)
    regions         region files of a claim
    claim_dir       the directory of a claim, hostile content and all
    loaded          how many processes of a container have the library mapped
    host            library, hook, preload file and lock on the host
    shipped         which library the image ships
    versions        which release a library is, and so its layout (pure)
    elf             what a shared object needs of its loader (pure)
    region          the bytes of a region (pure)
    contract        variables and paths (pure)
    processes       which processes are in whose containers

Upper ones import lower ones.
"""
