from pathlib import Path

import pytest

from skulkd.worker.machine import Machine, MemoryNow

GIB = 1 << 30
V1_UNLIMITED = "9223372036854771712"


class FakeRoot:
    """A machine laid out in files: 16 GiB, 8 allowed processors on 4 cores."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.write("proc/meminfo", f"MemTotal: {16 * GIB // 1024} kB\nMemAvailable: 8388608 kB\n")
        self.write("proc/self/cgroup", "0::/\n")
        for cpu in range(8):
            topology = f"sys/devices/system/cpu/cpu{cpu}/topology"
            self.write(f"{topology}/core_id", str(cpu % 4))
            self.write(f"{topology}/physical_package_id", "0")
        self.allow(range(8), monkeypatch)

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def allow(self, cpus: range, monkeypatch: pytest.MonkeyPatch) -> None:
        def affinity(_pid: int) -> set[int]:
            return set(cpus)

        monkeypatch.setattr("os.sched_getaffinity", affinity)

    @property
    def machine(self) -> Machine:
        return Machine(self.root)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeRoot:
    return FakeRoot(tmp_path, monkeypatch)


def test_without_limits_the_hosts_memory_counts(fake: FakeRoot) -> None:
    assert fake.machine.memory() == MemoryNow(
        total_bytes=16 * GIB, available_bytes=8 * GIB, seen_by="/proc/meminfo"
    )


def test_free_swap_is_told_apart_and_does_not_count_under_a_limit(fake: FakeRoot) -> None:
    meminfo = "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\nSwapTotal: 9 kB\nSwapFree: 4 kB\n"
    fake.write("proc/meminfo", meminfo)
    assert fake.machine.memory() == MemoryNow(
        total_bytes=16 * GIB,
        available_bytes=8 * GIB,
        swap_free_bytes=4096,
        seen_by="/proc/meminfo",
    )
    fake.write("proc/self/cgroup", "0::/a\n")
    fake.write("sys/fs/cgroup/a/memory.max", f"{4 * GIB}\n")
    fake.write("sys/fs/cgroup/a/memory.current", "0\n")
    assert fake.machine.memory().swap_free_bytes == 0


def test_the_tightest_limit_on_the_way_up_counts_in_version_2(fake: FakeRoot) -> None:
    fake.write("proc/self/cgroup", "0::/a/b\n")
    fake.write("sys/fs/cgroup/a/b/memory.max", "max\n")
    fake.write("sys/fs/cgroup/a/b/memory.current", "0\n")
    fake.write("sys/fs/cgroup/a/memory.max", f"{4 * GIB}\n")
    fake.write("sys/fs/cgroup/a/memory.current", f"{3 * GIB}\n")
    fake.write("sys/fs/cgroup/a/memory.stat", f"anon 5\ninactive_file {GIB}\n")
    assert fake.machine.memory() == MemoryNow(
        total_bytes=4 * GIB, available_bytes=2 * GIB, seen_by="limit of cgroup /a"
    )


def test_limits_of_version_1_count_and_its_unlimited_does_not(fake: FakeRoot) -> None:
    fake.write("proc/self/cgroup", "4:memory:/a\n2:cpu,cpuacct:/\n0::/\n")
    fake.write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", f"{2 * GIB}\n")
    fake.write("sys/fs/cgroup/memory/a/memory.usage_in_bytes", f"{GIB}\n")
    fake.write("sys/fs/cgroup/memory/memory.limit_in_bytes", V1_UNLIMITED)
    fake.write("sys/fs/cgroup/memory/memory.usage_in_bytes", f"{9 * GIB}\n")
    assert fake.machine.memory() == MemoryNow(
        total_bytes=2 * GIB, available_bytes=GIB, seen_by="limit of cgroup /memory/a"
    )


def test_a_path_that_only_the_host_sees_falls_back_to_the_mount(fake: FakeRoot) -> None:
    fake.write("proc/self/cgroup", "0::/docker/deadbeef\n")
    fake.write("sys/fs/cgroup/memory.max", f"{GIB}\n")
    fake.write("sys/fs/cgroup/memory.current", "0\n")
    assert fake.machine.memory().total_bytes == GIB


def test_threads_are_cores_not_siblings(fake: FakeRoot) -> None:
    assert fake.machine.n_cpus() == 4


def test_a_mask_of_half_the_cores_counts_those(
    fake: FakeRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.allow(range(2), monkeypatch)
    assert fake.machine.n_cpus() == 2


@pytest.mark.parametrize(
    ("quota", "n_cpus"), [("400000 100000", 4), ("265000 100000", 2), ("50000 100000", 1)]
)
def test_a_quota_is_rounded_down_and_never_to_nothing(
    fake: FakeRoot, quota: str, n_cpus: int
) -> None:
    fake.write("sys/fs/cgroup/cpu.max", quota)
    assert fake.machine.n_cpus() == n_cpus


def test_a_quota_of_version_1_counts_and_its_unlimited_does_not(fake: FakeRoot) -> None:
    fake.write("proc/self/cgroup", "1:cpu,cpuacct:/\n")
    fake.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1")
    fake.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
    assert fake.machine.n_cpus() == 4
    fake.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "300000")
    assert fake.machine.n_cpus() == 3


def test_where_topology_is_hidden_every_processor_counts(fake: FakeRoot) -> None:
    for path in fake.root.glob("sys/devices/system/cpu/*/topology/*"):
        path.unlink()
    assert fake.machine.n_cpus() == 8


def test_the_processor_is_named_on_both_architectures(fake: FakeRoot) -> None:
    fake.write("proc/cpuinfo", "model name\t: Fast CPU\nflags\t\t: sse avx2\nmodel name\t: Other\n")
    assert fake.machine.processor().model == "Fast CPU"
    assert fake.machine.processor().features == ("avx2", "sse")
    fake.write("proc/cpuinfo", "Features\t: fp asimd\nCPU part\t: 0xd0c\n")
    assert fake.machine.processor().model == "0xd0c"
    assert fake.machine.processor().features == ("asimd", "fp")


def test_out_of_memory_kills_are_counted_by_the_kernel(fake: FakeRoot) -> None:
    fake.write("proc/vmstat", "nr_free_pages 12\noom_kill 3\n")
    assert fake.machine.oom_kills() == 3
    fake.write("proc/vmstat", "nr_free_pages 12\n")
    assert fake.machine.oom_kills() is None


def test_this_machine_has_memory_and_processors() -> None:
    machine = Machine()
    memory = machine.memory()
    assert 0 < memory.available_bytes <= memory.total_bytes
    assert machine.n_cpus() >= 1


def test_b36_threads_are_the_whole_processors_of_a_quota_at_most_the_cores_of_the_mask(
    fake: FakeRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.write("proc/self/cgroup", "0::/a\n")
    for quota, n_cpus in ((200_000, 2), (365_000, 3), (765_000, 4), (50_000, 1)):
        fake.write("sys/fs/cgroup/a/cpu.max", f"{quota} 100000\n")
        processor = fake.machine.processor()
        assert fake.machine.n_cpus() == n_cpus
        assert (processor.n_cores, processor.quota) == (4, quota / 100_000)
    fake.write("sys/fs/cgroup/a/cpu.max", "max 100000\n")
    fake.allow(range(2), monkeypatch)
    assert (fake.machine.n_cpus(), fake.machine.processor().quota) == (2, None)
