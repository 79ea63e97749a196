// TensorBoard's event files: TFRecords of Event messages (tensorboard/compat/proto/event.proto, summary.proto).
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <utility>

namespace recast::tensorboard {

/// CRC-32C (Castagnoli), as RFC 3720 defines it.
uint32_t crc32c(std::string_view bytes);

/// A record: length, masked checksum of the length, payload, masked checksum of the payload.
std::string record(std::string_view payload);

/// Event{wall_time, file_version = "brain.Event:2"}: the first record of a file.
std::string versionEvent(double wallSeconds);

/// Event{wall_time, step, summary = {(tag, simple_value)...}}.
std::string scalarsEvent(double wallSeconds, int64_t step, std::span<const std::pair<std::string, float>> scalars);

} // namespace recast::tensorboard
