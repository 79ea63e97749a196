// Where ranks find each other: rank 0 keeps a table of names and values that all read and write over TCP.
#pragma once
#include <gloo/rendezvous/store.h>
#include <memory>

namespace recast {

/// The table's keeper. Stops when it is destroyed, after all clients are done.
class RendezvousServer {
public:
  /// Listens on all addresses. Throws std::runtime_error with the reason.
  explicit RendezvousServer(const std::string &port);
  ~RendezvousServer();

private:
  struct Impl;
  std::unique_ptr<Impl> impl;
};

/// A connection to it.
class RendezvousClient final : public gloo::rendezvous::Store {
public:
  /// Tries again until `timeout`: rank 0 may start later. Throws std::runtime_error with the reason.
  RendezvousClient(const std::string &address, const std::string &port, std::chrono::seconds timeout);
  ~RendezvousClient() override;

  /// The address of this machine that the others can reach: of its end of the connection.
  std::string ownAddress() const;

  void set(const std::string &key, const std::vector<char> &data) override;
  /// Waits until the key is there.
  std::vector<char> get(const std::string &key) override;
  void wait(const std::vector<std::string> &keys) override;

private:
  int socket = -1;
};

} // namespace recast
