#include "ir/io/WireFormat.h"
#include "onnx/onnx_pb.h"
#include <cstdlib>
#include <fstream>
#include <gtest/gtest.h>
#include <sstream>

namespace recast::io {
namespace {

llvm::ArrayRef<char> bytesOf(const std::string &text) { return {text.data(), text.size()}; }

// A model with raw data of `sizes` bytes: in initializers, in an attribute, in a body and in a function.
onnx::ModelProto makeModel(const std::vector<size_t> &sizes) {
  onnx::ModelProto model;
  model.set_ir_version(10);
  auto fill = [](onnx::TensorProto &tensor, size_t size, char seed) {
    std::string data(size, seed);
    for (size_t i = 0; i < size; ++i)
      data[i] = static_cast<char>(seed + i * 7);
    tensor.set_data_type(onnx::TensorProto::UINT8);
    tensor.add_dims(static_cast<int64_t>(size));
    tensor.set_raw_data(data);
  };
  auto *graph = model.mutable_graph();
  for (size_t i = 0; i < sizes.size(); ++i) {
    auto *tensor = graph->add_initializer();
    tensor->set_name("w" + std::to_string(i));
    fill(*tensor, sizes[i], static_cast<char>(i));
    fill(*graph->add_node()->add_attribute()->mutable_t(), sizes[i], 'a');
    auto *body = graph->add_node()->add_attribute()->mutable_g();
    fill(*body->add_initializer(), sizes[i], 'b');
    fill(*model.add_functions()->add_node()->add_attribute()->mutable_t(), sizes[i], 'c');
  }
  return model;
}

// Takes the tensors out and puts them back through a file.
std::string roundTrip(const std::string &model, size_t &tokens) {
  auto skeleton = extractTensors(bytesOf(model));
  EXPECT_TRUE(static_cast<bool>(skeleton));
  onnx::ModelProto parsed;
  EXPECT_TRUE(parsed.ParseFromString(*skeleton));
  // Re-number tokens as the exporter does.
  std::vector<llvm::ArrayRef<char>> tensors;
  auto renumber = [&](onnx::TensorProto &tensor) {
    if (auto token = decodeToken(tensor.raw_data())) {
      tensor.set_raw_data(encodeToken({tensors.size(), 0}));
      tensors.push_back(bytesOf(model).slice(token->first, token->second));
    }
  };
  for (auto &tensor : *parsed.mutable_graph()->mutable_initializer())
    renumber(tensor);
  for (auto &node : *parsed.mutable_graph()->mutable_node())
    for (auto &attribute : *node.mutable_attribute())
      if (attribute.has_t())
        renumber(*attribute.mutable_t());
      else
        for (auto &tensor : *attribute.mutable_g()->mutable_initializer())
          renumber(tensor);
  for (auto &function : *parsed.mutable_functions())
    renumber(*function.mutable_node(0)->mutable_attribute(0)->mutable_t());
  tokens = tensors.size();
  std::string path = testing::TempDir() + "wire_format_test.onnx";
  auto out = OutputFile::create(path);
  EXPECT_TRUE(static_cast<bool>(out));
  EXPECT_FALSE(static_cast<bool>(writeWithTensors(parsed.SerializeAsString(), tensors, **out)));
  EXPECT_FALSE(static_cast<bool>((*out)->commit()));
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

TEST(WireFormat, RoundTripKeepsEveryByte) {
  // 28 is the length of a token: such data must be replaced too. 70,000 needs a longer length field in each message
  // above.
  onnx::ModelProto model = makeModel({0, 1, 28, 256, 257, 4000, 70000});
  size_t tokens = 0;
  std::string back = roundTrip(model.SerializeAsString(), tokens);
  onnx::ModelProto again;
  ASSERT_TRUE(again.ParseFromString(back));
  EXPECT_EQ(again.SerializeAsString(), model.SerializeAsString());
  EXPECT_EQ(tokens, 4u * 4u); // 28, 257, 4000 and 70000, in four places each
}

TEST(WireFormat, DataThatLooksLikeATokenIsData) {
  onnx::ModelProto model = makeModel({});
  auto *tensor = model.mutable_graph()->add_initializer();
  tensor->set_raw_data(encodeToken({1ull << 60, 1ull << 60}));
  size_t tokens = 0;
  onnx::ModelProto again;
  ASSERT_TRUE(again.ParseFromString(roundTrip(model.SerializeAsString(), tokens)));
  EXPECT_EQ(tokens, 1u);
  EXPECT_EQ(again.graph().initializer(0).raw_data(), tensor->raw_data());
}

TEST(WireFormat, EveryTruncationIsAnErrorOrAShorterModel) {
  std::string model = makeModel({300}).SerializeAsString();
  size_t errors = 0;
  for (size_t length = 0; length < model.size(); ++length) {
    auto skeleton = extractTensors(bytesOf(model).take_front(length));
    if (!skeleton) {
      ++errors;
      EXPECT_NE(llvm::toString(skeleton.takeError()).find("cut short"), std::string::npos);
    }
  }
  // Cuts between fields of the outermost message leave a valid, shorter message.
  EXPECT_GT(errors, model.size() - 10);
}

TEST(WireFormat, RandomDamageNeverCrashes) {
  std::string model = makeModel({300, 28}).SerializeAsString();
  uint32_t state = 1;
  for (int round = 0; round < 20000; ++round) {
    std::string damaged = model;
    for (int i = 0; i < 4; ++i) {
      state = state * 1664525u + 1013904223u;
      damaged[(state >> 8) % damaged.size()] = static_cast<char>(state >> 3);
    }
    auto skeleton = extractTensors(bytesOf(damaged));
    if (skeleton) {
      EXPECT_LE(skeleton->size(), damaged.size() + 4096);
    } else {
      llvm::consumeError(skeleton.takeError());
    }
  }
}

TEST(OutputFile, NothingAppearsWithoutCommit) {
  std::string path = testing::TempDir() + "never_committed";
  {
    auto out = OutputFile::create(path);
    ASSERT_TRUE(static_cast<bool>(out));
    EXPECT_FALSE(static_cast<bool>((*out)->write(std::string("half"))));
  }
  EXPECT_FALSE(static_cast<bool>(std::ifstream(path)));
}

} // namespace
} // namespace recast::io
