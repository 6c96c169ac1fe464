"""`hami-kubeletplugin uninstall`: what the daemon leaves on a node goes, and nothing else."""

import asyncio
from pathlib import Path

from hami_kubeletplugin.fake.api_server import ApiServer
from hami_kubeletplugin.fake.kubelet import FakeKubelet
from tests import CHECKOUT
from tests.unit.process.daemon import PROGRAM, Process, allocated
from tests.unit.process.test_daemon import registered


async def uninstall(process: Process, *options: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    places = {
        "--registry-dir": process.registry,
        "--plugin-dir": process.plugin_dir,
        "--cdi-dir": process.cdi,
        "--hami-dir": process.root / "vgpu",
    }
    ran = await asyncio.create_subprocess_exec(
        *(str(PROGRAM), "uninstall", *(str(word) for pair in places.items() for word in pair), *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**CHECKOUT},
    )
    async with asyncio.timeout(30):
        out, err = await ran.communicate()
    assert ran.returncode is not None
    return ran.returncode, out.decode(), err.decode()


def left(process: Process) -> set[Path]:
    """What lies in our folders, without the folders that were mounted, or were there before."""
    folders = (process.registry, process.plugin_dir, process.cdi, process.root / "vgpu")
    return {path for folder in folders for path in folder.rglob("*")}


async def test_what_a_daemon_leaves_goes_when_nothing_uses_it(process: Process, api: ApiServer) -> None:
    """Refused beside a daemon and beside a prepared claim, who are named; then all goes that is ours, and nothing else.

    Files of others in our folders stay, and so does what a link in the place of a file of ours leads to. It may be run again.
    """
    async with FakeKubelet(process.registry) as kubelet:
        plugin = await registered(process, api, kubelet)
        ref = allocated(api, "train", memory="100Mi")
        await plugin.prepare([ref])
        code, _, words = await uninstall(process)
        assert (code, f"pid {process._process.pid}" in words) == (1, True)  # type: ignore[union-attr]
        await process.kill()  # leaves its sockets
        code, _, words = await uninstall(process)
        assert (code, "default/train" in words) == (1, True), words
        before = left(process)
        code, listed, _ = await uninstall(process, "--claims", "--dry-run")
        assert (code, left(process)) == (0, before)

        precious = process.root / "precious"
        precious.mkdir()
        (precious / "file").write_text("x")
        others = {process.cdi / "nvidia.yaml", process.root / "vgpu" / "license", process.plugin_dir / "note"}
        for path in others:
            path.write_text("x")
        names = process.plugin_dir / "conditions.json"
        names.unlink(missing_ok=True)
        names.symlink_to(precious / "file")
        claim_link = process.root / "vgpu" / "cache" / "0d8f2d51-0000-4000-8000-000000000000"
        claim_link.symlink_to(precious)
        code, removed, words = await uninstall(process, "--claims")
        assert code == 0, words
        assert set(removed.splitlines()) >= set(listed.splitlines()) - {
            str(names),
            str(process.plugin_dir),
            str(process.root / "vgpu"),
            str(process.root / "vgpu" / "cache"),
        }
        kept = {path for path in left(process) if path.is_file() and not path.is_symlink()}
        assert kept == others
        assert (precious / "file").read_text() == "x"
        assert not list(process.registry.iterdir())
        assert (await uninstall(process))[0] == 0
