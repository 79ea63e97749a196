// The kernels of shapeEntries() that lie in files of their own.
#pragma once
#include "runtime/reference/Reference.h"

namespace recast::reference {

Status runSlice(const StepSpec &spec, const KernelArgs &args);
Status runSliceGrad(const StepSpec &spec, const KernelArgs &args);
Status runPad(const StepSpec &spec, const KernelArgs &args);
Status runPadGrad(const StepSpec &spec, const KernelArgs &args);
size_t padGradWorkspaceBytes(const StepSpec &spec);
std::string refusesPad(const StepSpec &spec);

} // namespace recast::reference
