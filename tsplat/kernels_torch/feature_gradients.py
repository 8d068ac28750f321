"""Sums the gradients of features over cameras, in vectorized PyTorch; see ``kernels/feature_gradients.py``."""

from torch import Tensor

from ..data import FeatureIds
from .indices import packed_ids


def sum_feature_gradients(v_rows: Tensor, ids: FeatureIds, n: int) -> Tensor:
    if (dense_ids := packed_ids(ids.row_of)) is not None:
        v_rows = v_rows.new_zeros(n * ids.n_cameras, v_rows.shape[1]).index_copy_(0, dense_ids, v_rows)
    v_features = v_rows.new_zeros(n, v_rows.shape[1])
    by_camera = v_rows.view(n // ids.n_gaussians, ids.n_cameras, ids.n_gaussians, v_rows.shape[1])
    for camera in range(ids.n_cameras):
        v_features += by_camera[:, camera].reshape(v_features.shape)
    return v_features
