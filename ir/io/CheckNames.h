// Names that other files are to hold too: reports, states and logs are JSON, which is UTF-8.
#pragma once
#include "onnx/onnx_pb.h"
#include <string>

namespace recast::io {

/// "the node name 'W�'" for the first name of the model that is no UTF-8; "" where all are.
std::string nameThatIsNoText(const onnx::ModelProto &model);

} // namespace recast::io
