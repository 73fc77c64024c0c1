"""Outputs of a module are judged against the module as it is exported, not against torch's fused encoder operators."""

import numpy as np
import torch
from torch import Tensor, nn

from sdpa_onnx.core.records.records import Verdict
from sdpa_onnx.workflows.check.module_output_check import Float64Module


class _Padded(nn.Module):
    """Self attention of torch with a padding mask."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        result: Tensor = self.attention(x, x, x, key_padding_mask=hidden, need_weights=False)[0]
        return result


def test_row_without_a_visible_key() -> None:
    """The fused operator of torch.nn returns NaN there, the exported graph the projection of zero."""
    module = _Padded().eval()
    x = torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(0))
    hidden = torch.tensor([[True, True, True], [False, True, True]])
    feeds = {"x": x.numpy(), "hidden": hidden.numpy()}
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        right = module(x, hidden).detach().numpy()
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    truth = Float64Module.of(module, "float32")
    assert [found.verdict for found in truth.judge(feeds, [right])] == [Verdict.OK]
    without = np.where(np.arange(2)[:, None, None] == 0, np.float32(np.nan), right)
    assert [found.verdict for found in truth.judge(feeds, [without])] == [Verdict.WRONG]
    assert torch.backends.mha.get_fastpath_enabled()
