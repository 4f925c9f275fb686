// SPDX-License-Identifier: Apache-2.0
#include "ps/server.h"

#include <utility>

#include "ps/server_core.h"

namespace dt::ps {

Server::Server(Options options) : options_(std::move(options)) {}

Result<std::unique_ptr<Server>> Server::start(tcp::Socket listener, Options options) {
  std::unique_ptr<Server> server(new Server(std::move(options)));
  server->port_ = listener.local().port();
  DT_TRY_VALUE(server->files_, net::Loop::start("dt-ps-files"));
  DT_TRY_VALUE(server->loop_, net::Loop::start("dt-ps"));
  Status begun;
  server->loop_->run([&] {
    server->core_ = std::make_unique<ServerCore>(server->options_, &server->statistics_,
                                                 server->loop_.get(), server->files_.get());
    begun = server->core_->begin(std::move(listener));
  });
  DT_TRY(begun);
  return server;
}

Server::~Server() {
  if (loop_ != nullptr) {
    loop_->run([this] { core_ = nullptr; });
    loop_ = nullptr;
  }
}

void Server::stop() {
  loop_->run([this] { core_->stop(); });
}

Result<bool> Server::wait(const Wait& wait) {
  DT_TRY(loop_->check_not_forked());
  if (!core_->ended.wait(wait)) return false;
  DT_TRY(core_->end_status);
  return true;
}

}  // namespace dt::ps
