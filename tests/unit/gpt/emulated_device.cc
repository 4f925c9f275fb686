// SPDX-License-Identifier: Apache-2.0
// The example's GPU side, on this processor.
#include "emulated_launch.h"
// Its <<<>>> is in the header that the one above stands for.
#include "device_cuda.cu"
