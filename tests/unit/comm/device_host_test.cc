// SPDX-License-Identifier: Apache-2.0
// What Communicator::on_host() gives of a communicator over GPUs, which are made of threads here.
#include "training/device_ranks.h"

using namespace dt;
using namespace dt::test;

TEST_CASE("on_host: communicators split from several of one communicator have names of their own") {
  for (const char* backend : {"nccl", "staged"}) {
    CAPTURE(backend);
    run_on_gpus({backend, 2}, [](GpuRank& rank) {
      std::vector<std::shared_ptr<comm::Communicator>> hosts;
      std::vector<std::shared_ptr<comm::Communicator>> children;
      const auto split = [&](comm::Communicator& from) {
        auto child = from.split(0, rank.rank);
        rank.expect_ok(child.status(), "split");
        if (child.ok()) children.push_back(std::move(child).value());
      };
      // Which of them a rank splits does not matter, nor that an earlier one has ended.
      for (int i = 0; i < 3; ++i) {
        hosts.push_back(rank.comm->on_host());
        split(rank.rank == 0 ? *hosts.back() : *hosts.front());
        if (rank.rank == 0) hosts.clear();
      }
      split(*rank.comm);
      rank.expect(children.size() == 4, "children");
      const std::string own = rank.comm->name();
      const std::string names[] = {own + " (host)/0.0", own + " (host)/1.0", own + " (host)/2.0",
                                   own + "/0.0"};
      for (size_t i = 0; i < children.size(); ++i) {
        rank.expect(children[i]->name() == names[i], children[i]->name());
        backend::Collective barrier;
        rank.expect_ok(children[i]->run(barrier), "barrier");
      }
    });
  }
}

TEST_CASE(
    "on_host: what is left of the time before the first time-out is that of the communicator") {
  run_on_gpus({"nccl", 2}, [](GpuRank& rank) {
    comm::Communicator::Options seat;
    seat.name = "young";
    seat.rank = rank.rank;
    seat.world_ranks = {0, 1};
    seat.backend = std::shared_ptr<backend::Backend>(rank.comm, &rank.comm->backend());
    seat.board = std::make_shared<comm::FailureBoard>();
    seat.timeout_ms = 1'000;
    seat.first_timeout_ms = 3'600'000;
    const auto young = comm::Communicator::create(std::move(seat));
    const Deadline end = young->deadline();
    rank.expect(Deadline::after_ms(1'800'000).before(end), "it has the longer time");
    rank.expect(young->on_host()->deadline() == end, "and so has the one over host memory");
    young->set_timeout_ms(2'000);
    rank.expect(young->on_host()->deadline().before(Deadline::after_ms(1'800'000)), "none is left");
  });
}
