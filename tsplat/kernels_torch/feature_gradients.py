"""Sums the gradients of features over cameras, in vectorized PyTorch; see ``kernels/feature_gradients.py``."""

from torch import Tensor

from ..data import FeatureIds


def sum_feature_gradients(v_rows: Tensor, ids: FeatureIds, n: int) -> Tensor:
    if ids.row_of is not None:
        is_culled = (ids.row_of < 0).flatten()
        v_rows = v_rows.new_zeros(is_culled.numel(), v_rows.shape[1]).index_put_((~is_culled,), v_rows)
    v_features = v_rows.new_zeros(n, v_rows.shape[1])
    by_camera = v_rows.view(n // ids.n_gaussians, ids.n_cameras, ids.n_gaussians, v_rows.shape[1])
    for camera in range(ids.n_cameras):
        v_features += by_camera[:, camera].reshape(v_features.shape)
    return v_features
