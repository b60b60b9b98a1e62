"""The parts of a script that are the same in every one: how tensors are laid, run and compared."""

from __future__ import annotations

from ..cases.guards import MAPPED

OF_BYTES = '''

def of_bytes(text, shape, dtype):
    """A tensor of the bytes that a text holds."""
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=dtype).reshape(shape)

'''

LAYING = f'''

def guarded(size, dtype):
    """[size] known numbers, so that a read outside a tensor gives the same in every run."""
    if size * dtype.itemsize >= {MAPPED}:
        return torch.zeros(size, dtype=dtype, device=DEVICE)
    ramp = torch.arange(size, device=DEVICE) * 7919 % 1021
    return ((ramp / 1021 * 4 + 4) * (1 - 2 * (ramp % 2))).to(dtype)


def laid(value, storage, size, strides, offset):
    """A tensor with these strides, in elements, inside a storage; those of one storage share it."""
    if storage not in STORAGES:
        STORAGES[storage] = guarded(size, value.dtype)
    tensor = STORAGES[storage].as_strided(value.shape, strides, offset)
    once = tuple(slice(0, 1) if step == 0 else slice(None) for step in strides)
    tensor[once] = value[once].to(DEVICE)
    return tensor

'''

ROUNDING = "DTYPE, UNIT = torch.{dtype}, {unit!r}  # the kernel's, and how far one rounding goes"

ARITHMETIC = '''
def wrong(results):
    """What results, by name in lower case, differ from what they should be by more than rounding does, in sentences."""
    exact, free = expected(torch.float64)
    rounded, _ = expected(DTYPE)
    found = []
    for name, value in exact.items():
        actual = results.get(name.lower())
        if actual is None:
            continue
        # Sixty-four times what the same formulas lose in the kernel's dtype, or a few roundings of the largest number.
        allowed = 64 * (rounded[name].double() - value).abs().max() + 16 * UNIT * value.abs().max()
        actual = actual.detach().cpu().double().reshape(value.shape)
        bad = ~((actual - value).abs() <= allowed) & ~free.get(name, torch.zeros((), dtype=torch.bool))
        if bad.any():
            at = tuple(bad.nonzero()[0].tolist())
            found.append(f"{name}{list(at)} is {actual[at]:.6g} and should be {value[at]:.6g} ({int(bad.sum())} wrong)")
    return found

'''

BACKWARD = '''
def run():
    """What the target gives, by name in lower case."""
    returned = target(**ARGUMENTS) or {}
    results = {name: ARGUMENTS[TAKES[name]] for name in OUTPUTS}
    results |= {str(name).lower(): value for name, value in returned.items() if value is not None}
    return {"o" if name == "out" else name: value for name, value in results.items()}

'''

FORWARD = '''
def run():
    """What the target and autograd give, by name in lower case."""
    names = [name for name in GRADIENTS if TAKES.get(name) in ARGUMENTS and TENSORS[name].is_floating_point()]
    leaves = {TAKES[name]: TENSORS[name].detach().requires_grad_() for name in names}
    returned = target(**ARGUMENTS | leaves)
    results = dict(returned) if isinstance(returned, dict) else {}
    results = {"o" if str(name).lower() == "out" else str(name).lower(): value for name, value in results.items()}
    if not results:
        results["o"] = returned[0] if isinstance(returned, (tuple, list)) else returned
    found = torch.autograd.grad(results["o"], list(leaves.values()), TENSORS["do"], allow_unused=True)
    return results | {GRADIENTS[name].lower(): gradient for name, gradient in zip(names, found) if gradient is not None}

'''

END = """
if __name__ == "__main__":
    for _ in range(REPEATS):
        said = wrong(run())
        assert not said, "; ".join(said)
    print("right: the fault is gone")
"""
