"""Computes exact expectations of a softmax over Gaussian logits, for any finite number of keys.

Query and key components are independent N(0, sigma^2). Given a query, the logits
of its row are then exactly independent N(0, beta_q^2) with beta_q = |scale| sigma |q|,
so every expectation follows from the Laplace transform of the partition sum Z
(two one-dimensional quadratures), averaged over |q|^2 ~ sigma^2 chi^2_d. Measures
nothing and predicts no medians or quantiles.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sdpa_onnx.core.saturation.measures import (
    FLOAT16_LARGEST,
    FLOAT16_SMALLEST,
    SATURATED_WEIGHT,
    MeasureName,
    critical_spread,
)
from sdpa_onnx.errors import CaseError

__all__ = ["predict"]

Float64 = NDArray[np.float64]

# Nodes of the average over |q|^2. From d_k = 4 on, 64 nodes change no prediction above 1e-9 by more than 4e-5 of it.
_QUERY_NODES = 24
# Integration limit of a standard normal: the probability outside is 1e-20.
_NORMAL_REACH = 9.5
# Steps of the trapezoidal rule, which converges exponentially for these smooth integrands: halving them changes no
# prediction by more than 1e-7 of it. Largest step in x, in ln t, and in ln t as a multiple of beta if that is larger.
_STEP_X, _STEP_LN_T, _STEP_LN_T_OF_BETA = 0.25, 0.2, 1.0 / 12.0
_STEP_EXPONENT = 0.3
# Above this spread the quadrature runs over ln u, between the points where u and where e^-u are negligible.
_WIDE = 4.0
_LEFT_LN_U, _RIGHT_LN_U = 45.0, 6.0
# ln S of the longest row that the grid in ln t covers.
_MOST_LN_KEYS = 18.0
# Below this spread the row is so flat that ln Z is normal to all relevant digits, while the deconvolution
# of `_density` would amplify rounding errors by exp(pi^2 / (8 beta^2)).
_FLAT = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Transform:
    """E[x^k u^n e^-u] with u = t e^(beta x), x ~ N(0, 1), on a grid of ln t.

    Args:
        beta: Spread of the logits of one row.
        ln_t: (points,), equally spaced.
        log_laplace: (points,), ln E e^-u: S times it is ln E e^(-t Z).
        moments: (points, 4, 3): n = 1..4 and k = 0..2.
    """

    beta: float
    ln_t: Float64
    log_laplace: Float64
    moments: Float64

    def integral(self, others: int, *factors: tuple[int, int]) -> float:
        """Integrate product(E[x^k u^n e^-u] for (n, k) in factors) * laplace^others d ln t."""
        product = np.exp(max(others, 0) * self.log_laplace)
        for n, k in factors:
            product = product * self.moments[:, n - 1, k]
        return float(product.sum()) * self.step

    @property
    def step(self) -> float:
        return float(self.ln_t[1] - self.ln_t[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """Expectations over one row of logits N(0, beta^2); as an array, in this order.

    Args:
        entropy: -sum w ln w, nats.
        square_sum: sum w^2.
        jacobian_square: |diag w - w w^T|_F^2 = sum w^2 - 2 sum w^3 + (sum w^2)^2.
        along_query: sum w^2 (x - xbar)^2, x = logit / beta and xbar = sum w x.
        log_partition: ln sum e^logit, nats.
        saturated: P(largest weight > SATURATED_WEIGHT).
        zero_in_float16: P(a weight < FLOAT16_SMALLEST).
    """

    entropy: float
    square_sum: float
    jacobian_square: float
    along_query: float
    log_partition: float
    saturated: float
    zero_in_float16: float


@lru_cache(maxsize=4096)
def predict(*, head_dim: int, kv_seq_len: int, scale: float, sigma: float) -> dict[MeasureName, float]:
    """Compute the expectation of every measure that has an exact one.

    Gradients are those of g.o with |g| = 1 and value ~ N(0, 1): dL/dlogits = J u
    with u ~ N(0, I), so its mean square is E|J|_F^2; dL/dquery = scale K^T J u
    has d_k - 1 components orthogonal to the query, which depend on J only, and one along it.

    Args:
        head_dim: d_k.
        kv_seq_len: Keys per row, at least 2.
        scale: Factor on QK^T.
        sigma: Standard deviation of the components of query and key.

    Returns:
        Expectation by measure; for rms measures the square root of the expected mean square.

    Raises:
        CaseError: If a row has fewer than 2 keys, or more than e^18.

    Source: METHOD D.1 to D.3; the identity 1/Z^n = int t^(n-1) e^(-tZ) dt / (n-1)!
    """
    if not 2 <= kv_seq_len <= math.exp(_MOST_LN_KEYS):
        raise CaseError(f"kv_seq_len is {kv_seq_len}; predictions need 2 to {math.exp(_MOST_LN_KEYS):.0f} keys.")
    norms, weights = _query_norms(head_dim)
    spreads = abs(scale) * sigma**2 * norms
    rows = [_row(float(spread), kv_seq_len) for spread in spreads]
    entropy, square_sum, jacobian, along, log_partition, saturated, zero = weights @ np.array(
        [[getattr(row, name) for name in _Row.__slots__] for row in rows]
    )
    beta = abs(scale) * sigma**2 * math.sqrt(head_dim)
    overflow = [math.erfc(FLOAT16_LARGEST / (sigma**2 * norm) / math.sqrt(2.0)) if sigma else 0.0 for norm in norms]
    found = {
        MeasureName.PRODUCT_MEAN: 0.0,
        MeasureName.PRODUCT_VARIANCE: head_dim * sigma**4,
        MeasureName.LOGIT_SPREAD: beta * _mean_of_root(head_dim) * _mean_of_root(kv_seq_len - 1),
        MeasureName.BETA: beta,
        MeasureName.BETA_OVER_CRITICAL: beta / critical_spread(kv_seq_len),
        MeasureName.LOG_PARTITION: log_partition,
        MeasureName.ENTROPY: entropy,
        MeasureName.ENTROPY_SHARE: entropy / math.log(kv_seq_len),
        MeasureName.EFFECTIVE_KEYS: math.exp(entropy),
        MeasureName.SQUARE_SUM: square_sum,
        MeasureName.PARTICIPATION: 1.0 / square_sum,
        MeasureName.SATURATED_ROWS: saturated,
        MeasureName.JACOBIAN_RMS: math.sqrt(jacobian),
        MeasureName.LOGIT_GRADIENT_RMS: math.sqrt(jacobian),
        MeasureName.QUERY_GRADIENT_RMS: abs(scale) * sigma * math.sqrt((head_dim - 1) * jacobian + along),
        MeasureName.FLOAT16_ZEROS: zero,
        MeasureName.FLOAT16_OVERFLOW: float(weights @ np.array(overflow)),
    }
    return {name: float(value) for name, value in found.items()}


def _mean_of_root(degrees: int) -> float:
    """Compute E sqrt(chi^2_n / n), the ratio of the mean to the rms of a standard deviation with n degrees."""
    return math.sqrt(2.0 / degrees) * math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2))


@lru_cache(maxsize=256)
def _query_norms(head_dim: int) -> tuple[Float64, Float64]:
    """Compute nodes of |q| / sigma and their weights: Gauss quadrature for chi^2_d.

    Source: Golub and Welsch 1969; Laguerre polynomials with alpha = d/2 - 1
        are orthogonal under the density of chi^2_d / 2.
    """
    order = np.arange(_QUERY_NODES)
    alpha = head_dim / 2 - 1
    off_diagonal = np.sqrt(order[1:] * (order[1:] + alpha))
    jacobi = np.diag(2 * order + 1 + alpha) + np.diag(off_diagonal, 1) + np.diag(off_diagonal, -1)
    halves, vectors = np.linalg.eigh(jacobi)
    return np.sqrt(2.0 * np.maximum(halves, 0.0)), vectors[0] ** 2


@lru_cache(maxsize=512)
def _transform(beta: float) -> _Transform:
    """Evaluate the moments for one spread; they are the same for every length."""
    step = max(_STEP_LN_T, _STEP_LN_T_OF_BETA * beta)
    # Left of the grid, S E u < e^-30 even for the longest row; right of it, E e^-u < 1e-20.
    left = min(_MOST_LN_KEYS + beta**2 / 2, _NORMAL_REACH * beta) + 32.0
    ln_t = np.arange(-left, _NORMAL_REACH * beta + 6.0, step)
    missing, moments = (_wide if beta > _WIDE else _narrow)(beta, ln_t)
    log_laplace = np.log1p(-np.minimum(missing, 1.0 - 2.0**-53))
    return _Transform(beta=beta, ln_t=ln_t, log_laplace=log_laplace, moments=moments)


def _narrow(beta: float, ln_t: Float64) -> tuple[Float64, Float64]:
    """Compute 1 - E e^-u and the moments by quadrature over x."""
    x_step = min(_STEP_X, _STEP_EXPONENT / max(beta, 1e-300))
    x = np.arange(-_NORMAL_REACH, _NORMAL_REACH + x_step / 2, x_step)
    density = np.exp(-(x**2) / 2) * (x_step / math.sqrt(2 * math.pi))
    # Only avoids overflow: e^50 e^(-e^50) is already 0.
    u = np.exp(np.minimum(ln_t[:, None] + beta * x, 50.0))
    columns = np.stack([density, x * density, x**2 * density], axis=1)
    moments = np.stack([(u**n * np.exp(-u)) @ columns for n in range(1, 5)], axis=1)
    return -np.expm1(-u) @ density, moments


def _wide(beta: float, ln_t: Float64) -> tuple[Float64, Float64]:
    """Compute the same by quadrature over ln u, for spreads at which the normal density is the wider factor.

    1 - e^-u does not vanish to the right, but its derivative does, so that integral is computed by parts.
    """
    ln_u = np.arange(-_LEFT_LN_U, _RIGHT_LN_U, _STEP_EXPONENT)
    u = np.exp(ln_u)
    x = (ln_u - ln_t[:, None]) / beta
    density = np.exp(-(x**2) / 2) * (_STEP_EXPONENT / (beta * math.sqrt(2 * math.pi)))
    powers = np.stack([u**n * np.exp(-u) for n in range(1, 5)], axis=1)
    moments = np.stack([(x**k * density) @ powers for k in range(3)], axis=2)
    return _normal_below(-x) @ powers[:, 0] * _STEP_EXPONENT, moments


@lru_cache(maxsize=8192)
def _row(beta: float, keys: int) -> _Row:
    """Compute the expectations over one row.

    Source: METHOD D.2; E H = E ln Z - beta^2 (1 - E sum w^2) by Gaussian integration by parts.
    """
    transform = _transform(beta)
    one = transform.integral
    square = keys * one(keys - 1, (2, 0))
    cube = keys / 2 * one(keys - 1, (3, 0))
    pairs = keys * (keys - 1)
    squared_square = keys / 6 * one(keys - 1, (4, 0)) + pairs / 6 * one(keys - 2, (2, 0), (2, 0))
    log_partition = _log_partition(transform, keys)
    return _Row(
        entropy=log_partition - beta**2 * (1.0 - square),
        square_sum=square,
        jacobian_square=square - 2.0 * cube + squared_square,
        along_query=_along_query(transform, keys),
        log_partition=log_partition,
        saturated=keys * _share_above(transform, keys, SATURATED_WEIGHT),
        zero_in_float16=1.0 - _share_above(transform, keys, FLOAT16_SMALLEST),
    )


def _along_query(transform: _Transform, keys: int) -> float:
    """Compute E sum w^2 (x - xbar)^2, with the sums expanded over equal and different keys."""
    one = transform.integral
    pairs, triples = keys * (keys - 1), keys * (keys - 1) * (keys - 2)
    squares = keys * one(keys - 1, (2, 2))
    crossed = keys / 2 * one(keys - 1, (3, 2)) + pairs / 2 * one(keys - 2, (2, 1), (1, 1))
    mean_squares = (
        keys * one(keys - 1, (4, 2))
        + pairs * one(keys - 2, (2, 2), (2, 0))
        + 2 * pairs * one(keys - 2, (3, 1), (1, 1))
        + triples * one(keys - 3, (1, 1), (1, 1), (2, 0))
    ) / 6
    return squares - 2.0 * crossed + mean_squares


def _log_partition(transform: _Transform, keys: int) -> float:
    """Compute E ln Z = -gamma + int (step(t) - E e^(-tZ)) d ln t, for any step from 1 to 0 symmetric about t = 1.

    Source: Frullani's integral, ln Z = int (e^-t - e^(-tZ)) dt / t.
    """
    step = _normal_below(-transform.ln_t / max(transform.beta, 1.0))
    lost = step - np.exp(keys * transform.log_laplace)
    return float(lost.sum()) * transform.step - float(np.euler_gamma)


def _share_above(transform: _Transform, keys: int, weight: float) -> float:
    """Compute P(w_j > weight) = P(ln Z' - beta x < ln(1/weight - 1)) of one key, Z' the sum over the other keys.

    E e^(-tZ') is the distribution of ln Z' convolved with the logarithm of an
    exponential variable; `_density` replaces that kernel by a normal one. For a
    weight above 1/2, S times this is P(largest weight > weight).
    """
    limit = math.log1p(-weight) - math.log(weight)
    if transform.beta < _FLAT:
        spread = math.sqrt(transform.beta**2 + math.expm1(transform.beta**2) / (keys - 1) + 1e-300)
        return 0.5 * math.erfc((_log_partition(transform, keys - 1) - limit) / spread / math.sqrt(2.0))
    blurred = np.exp((keys - 1) * transform.log_laplace)
    share = float(_density(transform.beta, weight) @ blurred) * transform.step
    return min(max(share, 0.0), 1.0)


@lru_cache(maxsize=2048)
def _density(beta: float, weight: float) -> Float64:
    """Compute the signed density that replaces "+ ln exponential" by "+ N(0, beta^2)", at ln t + ln(1/weight - 1).

    Its Fourier transform is e^(-beta^2 k^2 / 2) / Gamma(1 - ik): 1/Gamma grows
    only like e^(pi k / 2), so the normal factor dominates.
    """
    ln_t = _transform(beta).ln_t
    places = ln_t + (math.log1p(-weight) - math.log(weight))
    most = (math.pi / 2 + math.sqrt(math.pi**2 / 4 + 74.0 * beta**2)) / beta**2
    # Periodic images of the density must not overlap these points.
    period = 2.0 * (ln_t[-1] - ln_t[0] + 2 * _NORMAL_REACH * beta + 50.0)
    count = math.ceil(most * period / (2 * math.pi)) + 1
    k = np.arange(count) * (2 * math.pi / period)
    transformed = np.exp(-(beta**2) * k**2 / 2 - _log_gamma(1.0 - 1j * k))
    transformed[0] *= 0.5
    return np.asarray((np.exp(-1j * np.outer(places, k)) @ transformed).real * (2.0 / period))


def _log_gamma(z: NDArray[np.complex128]) -> NDArray[np.complex128]:
    """Compute ln Gamma(z) for Re z = 1 by Stirling's series at z + 12.

    Source: DLMF 5.11.1; the first omitted term is below 1e-13.
    """
    shift = 12
    far = z + shift
    inverse = 1.0 / far
    series = inverse * (1 / 12 - inverse**2 * (1 / 360 - inverse**2 * (1 / 1260 - inverse**2 / 1680)))
    stirling = (far - 0.5) * np.log(far) - far + 0.5 * math.log(2 * math.pi) + series
    return np.asarray(stirling - np.log(z[None, :] + np.arange(shift)[:, None]).sum(0))


def _normal_below(x: Float64) -> Float64:
    """Standard normal distribution function."""
    return np.array([0.5 * math.erfc(-value / math.sqrt(2.0)) for value in x.ravel()]).reshape(x.shape)
