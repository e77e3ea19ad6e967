package conformance

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// TrueLimits is a life of the limits of sandboxes: programs find these where they look for the size
// of the machine, also after the service was started again, and cannot change what they find. class
// names the runtime class of the sandboxes; empty means none. The machine must have two processors
// at least, and no other sandbox whose limits count.
func TrueLimits(t *testing.T, s *Service, class string) {
	t.Helper()
	create := func(cpu, memory string) string {
		t.Helper()
		request := Limited(Request(s.Images.Base, "sleep", "1000"), cpu, memory)
		if class != "" {
			request.RuntimeClass = &class
		}
		return s.Running(t, request)
	}
	first, second := create("1", "128Mi"), create("500m", "256Mi")
	one, other := lookAtLimits(t, s, first, "131072"), lookAtLimits(t, s, second, "262144")
	if one == other {
		t.Errorf("two sandboxes have the same processor of two: %s", one)
	}
	s.Act(t, http.MethodPost, second+"/pause", http.StatusAccepted)
	s.Await(t, second, "Paused")
	s.Act(t, http.MethodPost, second+"/resume", http.StatusAccepted)
	s.Await(t, second, "Running")
	lookAtLimits(t, s, second, "262144")
	s.Halt(t)
	s.Boot(t)
	if again := lookAtLimits(t, s, second, "262144"); again != other {
		t.Errorf("the processor is %s after the service was started again, and was %s", again, other)
	}
	s.Delete(t, first)
	s.Await(t, first, "Terminated")
	if got := lookAtLimits(t, s, create("1", "128Mi"), "131072"); got != one {
		t.Errorf("the new sandbox has %s, and %s is free", got, one)
	}
}

// lookAtLimits checks the limits that a sandbox with one processor and so many KiB of memory is
// shown, and returns the list of processors that it runs on.
func lookAtLimits(t *testing.T, s *Service, id, memory string) (processors string) {
	t.Helper()
	inside := s.Enter(t, id)
	inside.Want(t, "nproc; getconf _NPROCESSORS_ONLN; grep -c ^processor /proc/cpuinfo; cat /sys/devices/system/cpu/online",
		"1\n1\n1\n0\n")
	inside.Want(t, "python3 -c 'import os; print(os.cpu_count(), len(os.sched_getaffinity(0)))'", "1 1\n")
	inside.Want(t, `awk '/^(MemTotal|MemFree|MemAvailable|SwapTotal):/ { print $2 }' /proc/meminfo`,
		fmt.Sprintf("%s\n%[1]s\n%[1]s\n0\n", memory))
	for _, file := range []string{"/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/cpu/online"} {
		if got := inside.Run(t, "echo x > "+file); got.Code == 0 || !strings.Contains(got.Stderr, "Read-only file system") {
			t.Errorf("writing to %s: %+v", file, got)
		}
		if got := inside.Run(t, "umount "+file); got.Code == 0 {
			t.Errorf("%s can be unmounted: %+v", file, got)
		}
	}
	got := inside.Run(t, "grep Cpus_allowed_list /proc/self/status")
	return strings.TrimSpace(got.Stdout)
}
