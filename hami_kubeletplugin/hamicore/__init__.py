"""HAMi-core, the library that keeps limits: its contract, its files on the host, and what containers get of it.

    enforcement     it as `claims.enforcement.Enforcement`
    storage         where the region of a container use is (pure)
    regions         region files of a claim
    claim_dir       the directory of a claim, in memory where possible
    loaded          how many processes of a container have the library mapped
    toolkit_hook    the image's nvidia-cdi-hook on the host, as these files
    host            library, hook, preload file and the folders of claims on the host
    lock_dir        the lock that old libraries share
    shipped         which library the image ships
    versions        which release a library is, and so its layout (pure)
    elf             what a shared object needs of its loader (pure)
    processes       which processes are in whose containers
    directories     directories that containers write into: made, and emptied whatever is in them
    mounts          small file systems in memory; what is mounted
    differences     where a region's limits are not what was given (pure)
    reading         what a region says now
    region          the bytes of a region (pure)
    contract        variables and paths (pure)

Upper ones import lower ones.
"""
