// NumPy's array files: .npy (versions 1 to 3), .npz, and folders of .npy.
#pragma once
#include "runtime/session/HostTensor.h"

namespace recast {

/// Little-endian arrays of numbers and bools. Fortran order is rearranged into row-major order. `path` is for messages.
Result<HostTensor> parseNpy(std::span<const std::byte> bytes, std::shared_ptr<const void> owner,
                            const std::string &path);

/// Every `NAME.npy` member of a zip archive as NAME.
Result<TensorMap> readNpz(const std::string &path);

/// Every file `NAME.npy` of a folder as NAME.
Result<TensorMap> readNpyFolder(const std::string &path);

} // namespace recast
