"""Device facts and telemetry: what cannot be read is empty with a reason, and a stuck driver blocks nobody."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from engine.errors import BadInput, Fault
from engine.hardware import facts
from engine.hardware.cpu import CpuMeter, parse_stat
from engine.hardware.facts import CudaProbe, Gpu, default_device, device_facts, parse_device
from engine.hardware.nvml import GONE, Nvml, NvmlUnavailable, throttle_reasons, within
from engine.hardware.quiet import QUIET
from engine.hardware.telemetry import Sampler
from engine.records import Sample

H200 = Gpu(
    index=1,
    name="NVIDIA H200",
    uuid="5c1f0a52-7d2e-4c1b-9a55-2f1d6b3e9a01",
    memory_bytes=150 << 30,
    sm_count=132,
    l2_bytes=60 << 20,
    compute_capability=[9, 0],
)


def test_the_cpu_is_known_without_importing_torch() -> None:
    code = (
        "import sys\nfrom engine.hardware.facts import device_facts\nf = device_facts('cpu')\n"
        "assert f.cores >= 1 and f.memory_bytes > 1 << 28 and f.name, f\n"
        "print('torch' in sys.modules, 'pynvml' in sys.modules, bool(f.versions.get('torch')))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "True"]


@pytest.mark.parametrize(
    ("text", "parsed"), [("cpu", ("cpu", None)), ("cuda", ("cuda", 0)), ("cuda:3", ("cuda", 3))]
)
def test_devices_are_named_as_torch_names_them(text: str, parsed: tuple[str, int | None]) -> None:
    assert parse_device(text) == parsed


@pytest.mark.parametrize("text", ["gpu", "cuda:", "cuda:-1", "cuda:x", "CPU", "", "cuda:0 "])
def test_other_names_are_refused_with_the_right_ones(text: str) -> None:
    with pytest.raises(BadInput, match="use cpu, cuda or cuda:0"):
        device_facts(text)


def test_a_missing_gpu_is_a_need_and_a_wrong_index_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "probe_cuda", lambda: CudaProbe(error="no CUDA driver"))
    with pytest.raises(Fault, match=r"needs\.cuda.*no CUDA driver"):
        device_facts("cuda")
    assert default_device() == "cpu"
    monkeypatch.setattr(facts, "probe_cuda", lambda: CudaProbe(devices=[H200]))
    with pytest.raises(BadInput, match="CUDA shows 1 device"):
        device_facts("cuda:7")


def test_gpu_facts_are_cudas_own_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "probe_cuda", lambda: CudaProbe(devices=[H200]))
    monkeypatch.setattr(facts, "driver_version", lambda: "580.95.05")
    found = device_facts("cuda:1")
    assert (found.name, found.uuid, found.compute_capability) == ("NVIDIA H200", f"GPU-{H200.uuid}", (9, 0))
    assert (found.sm_count, found.l2_bytes, found.driver) == (132, 60 << 20, "580.95.05")


def test_a_mig_instance_is_named_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = Gpu(index=0, name="NVIDIA H200 MIG 1g.18gb", uuid=H200.uuid, memory_bytes=18 << 30)
    monkeypatch.setattr(facts, "probe_cuda", lambda: CudaProbe(devices=[instance]))
    monkeypatch.setattr(facts, "driver_version", lambda: None)
    found = device_facts("cuda")
    assert found.uuid == f"MIG-{H200.uuid}"
    assert (found.compute_capability, found.sm_count, found.driver) == (None, None, "")


def test_the_probe_always_answers_in_json() -> None:
    done = subprocess.run([sys.executable, "-m", "engine.hardware.cuda_probe"], capture_output=True, check=True)
    import msgspec

    probe = msgspec.json.decode(done.stdout, type=CudaProbe)
    assert bool(probe.devices) != bool(probe.error)


PROC = {
    "stat": "cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 50 0 50 350 50 0 0 0\ncpu1 50 0 50 350 50 0 0 0\nintr 1\n",
    "meminfo": "MemTotal:       1000 kB\nMemFree: 100 kB\nMemAvailable:    400 kB\n",
    "loadavg": "1.50 1.20 1.00 2/300 1234\n",
    "cpuinfo": "processor : 0\nmodel name\t: Test CPU 9000\n",
}


def fake(folder: Path, **files: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def test_cpu_use_is_what_was_busy_since_the_last_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    proc = fake(tmp_path / "proc", **PROC)
    meter = CpuMeter(proc, tmp_path)
    first = meter.sample(1.0)
    assert (first.utilization, first.cores, first.load, first.name) == (None, [], 1.5, "Test CPU 9000")
    assert (first.memory_used_bytes, first.memory_total_bytes) == (600 * 1024, 1000 * 1024)
    fake(proc, stat="cpu0 125 0 50 375 50 0 0 0 0 0\ncpu1 50 0 50 440 60 0 0 0 0 0\n")
    second = meter.sample(2.0)
    assert second.cores == [0.75, 0.0]
    assert second.utilization == pytest.approx(0.375)


def test_a_containers_memory_limit_counts(tmp_path: Path) -> None:
    proc = fake(tmp_path / "proc", **PROC)
    cgroup = fake(tmp_path / "cgroup", **{"memory.max": "512000\n", "memory.current": "1000\n"})
    sample = CpuMeter(proc, cgroup).sample(1.0)
    assert (sample.memory_used_bytes, sample.memory_total_bytes) == (1000, 512000)


def test_without_proc_everything_is_unknown_and_said_so(tmp_path: Path) -> None:
    sample = CpuMeter(tmp_path / "none", tmp_path).sample(1.0)
    assert (sample.utilization, sample.memory_total_bytes, sample.load) == (None, None, None)
    assert "cannot be read" in sample.reason
    assert parse_stat("cpu broken\ncpu0 1 2\n") == {}


def test_this_machines_cpu_can_be_read() -> None:
    meter = CpuMeter()
    meter.sample(0.0)
    end = time.monotonic() + 0.15
    while time.monotonic() < end:
        pass
    sample = meter.sample(1.0)
    assert sample.utilization is not None and 0.0 < sample.utilization <= 1.0
    assert sample.memory_used_bytes and sample.memory_total_bytes


def test_throttling_is_told_from_idling() -> None:
    assert throttle_reasons(0x1) == []
    assert throttle_reasons(0x4 | 0x20) == ["power cap", "thermal"]


def test_a_box_without_nvml_says_why() -> None:
    try:
        Nvml()
    except NvmlUnavailable as error:
        assert str(error)
    else:
        pytest.skip("this box has NVML")
    assert within(lambda: Nvml().driver()) is None


class FakeNvml:
    """The part of nvidia-ml-py that a sample reads, of a MIG instance whose user may not see everything."""

    NVML_TEMPERATURE_GPU = NVML_CLOCK_SM = NVML_CLOCK_MEM = 0

    class NVMLError(Exception):
        pass

    class NVMLError_FunctionNotFound(NVMLError):
        pass

    def __getattr__(self, name: str) -> object:
        def refuse(*_: object) -> object:
            raise self.NVMLError("Not Supported" if "Utilization" in name else "Insufficient Permissions")

        return refuse

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != "MIG-1":
            raise self.NVMLError("GPU is lost")
        return "instance"

    def nvmlDeviceIsMigDeviceHandle(self, handle: str) -> bool:
        return True

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: str) -> str:
        return "board"

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        assert handle == "board"
        return 512_000

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:
        raise self.NVMLError_FunctionNotFound("Function Not Found")

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        return 0x4


def test_what_nvml_will_not_say_is_empty_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml.__new__(Nvml)
    nvml._lib = FakeNvml()
    sample = nvml.sample("MIG-1", 5.0)
    assert (sample.power_w, sample.throttle, sample.utilization) == (512.0, ["power cap"], None)
    assert (sample.memory_used_bytes, sample.temperature_c, sample.processes) == (None, None, [])
    assert "utilization: not supported" in sample.reason and "insufficient permissions" in sample.reason
    assert nvml.sample("GPU-2", 5.0).reason == f"{GONE}: GPU is lost"


def reading(uuid: str, at: float) -> Sample:
    return Sample(at=at, device=uuid, utilization=0.5)


async def collect(sampler: Sampler, seconds: float) -> None:
    sampler.start()
    await asyncio.sleep(seconds)
    await sampler.close()


async def test_every_device_is_sampled() -> None:
    seen: list[Sample] = []
    await collect(Sampler(seen.append, ["GPU-1", "GPU-2"], interval_s=0.02, open_reader=lambda: reading), 0.2)
    devices = [sample.device for sample in seen]
    assert devices[:3] == ["cpu", "GPU-1", "GPU-2"] and len(devices) >= 9


async def test_no_gpu_is_only_the_cpu() -> None:
    seen: list[Sample] = []
    await collect(Sampler(seen.append, interval_s=0.02), 0.1)
    assert {sample.device for sample in seen} == {"cpu"}


async def test_a_stuck_driver_costs_its_samples_and_nothing_else() -> None:
    seen: list[Sample] = []
    free = threading.Event()

    def stuck(uuid: str, at: float) -> Sample:
        free.wait(10)
        return reading(uuid, at)

    sampler = Sampler(seen.append, ["GPU-1"], interval_s=0.02, answer_s=0.05, open_reader=lambda: stuck)
    sampler.start()
    await asyncio.sleep(0.3)
    gpu = [sample for sample in seen if sample.device == "GPU-1"]
    assert len(gpu) >= 4 and all("has not answered" in sample.reason for sample in gpu)
    assert len([sample for sample in seen if sample.device == "cpu"]) >= 4
    assert sum(thread.name == "telemetry" for thread in threading.enumerate()) == 1
    free.set()
    await asyncio.sleep(0.1)
    assert seen[-1].utilization == 0.5
    began = time.monotonic()
    await sampler.close()
    assert time.monotonic() - began < 1.0


async def test_a_driver_that_is_not_there_is_a_reason_in_the_sample() -> None:
    def absent() -> None:
        raise NvmlUnavailable("NVML Shared Library Not Found")

    seen: list[Sample] = []
    await collect(Sampler(seen.append, ["GPU-1"], interval_s=0.02, open_reader=absent), 0.1)  # type: ignore[arg-type, return-value]
    assert {sample.reason for sample in seen if sample.device == "GPU-1"} == {"NVML Shared Library Not Found"}


async def test_nothing_is_read_while_a_block_is_timed() -> None:
    readings: list[float] = []

    def slow(uuid: str, at: float) -> Sample:
        time.sleep(0.03)
        readings.append(time.monotonic())
        return reading(uuid, at)

    sampler = Sampler(lambda sample: None, ["GPU-1"], interval_s=0.001, open_reader=lambda: slow)
    sampler.start()
    await asyncio.sleep(0.05)
    async with QUIET.closed():
        began = time.monotonic()
        async with QUIET.closed():
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.05)
        ended = time.monotonic()
    await asyncio.sleep(0.1)
    await sampler.close()
    assert not [at for at in readings if began < at < ended]
    assert readings[-1] > ended
