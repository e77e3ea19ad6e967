package config_test

import (
	"strings"
	"testing"

	"sandbox.internal/server/config"
)

// TestFit: on a small machine a sandbox that asks for nothing must not get what is refused for
// being more than there is.
func TestFit(t *testing.T) {
	const key = "0123456789abcdef0123456789abcdef"
	docker, local := config.Init(key), config.InitLocal(key, nil)
	for name, test := range map[string]struct {
		example     []byte
		machine     config.Machine
		cpu, memory string
		disk        int64
	}{
		"unknown":                   {docker, config.Machine{}, "2", "2Gi", 0},
		"large":                     {docker, config.Machine{CPUs: 64, MemoryBytes: 1 << 38, BoundsDisk: true}, "2", "2Gi", 0},
		"small":                     {docker, config.Machine{CPUs: 1, MemoryBytes: 1 << 30}, "1", "512Mi", 0},
		"tiny":                      {docker, config.Machine{CPUs: 1, MemoryBytes: 1 << 20}, "1", "16Mi", 0},
		"local":                     {local, config.Machine{CPUs: 4, MemoryBytes: 1 << 33, BoundsDisk: true}, "2", "2Gi", 10240},
		"local without loop device": {local, config.Machine{CPUs: 4, MemoryBytes: 1 << 33}, "2", "2Gi", 0},
	} {
		t.Run(name, func(t *testing.T) {
			got := load(t, string(config.Fit(test.example, test.machine)), home)
			limits := got.Server.Limits
			if limits.DefaultCPU != test.cpu || limits.DefaultMemory != test.memory || got.Local.DiskMiB != test.disk {
				t.Errorf("got %+v and disk_mib %d", limits, got.Local.DiskMiB)
			}
		})
	}
	if !strings.Contains(string(docker), "\ndisk_mib = 0\n") {
		t.Error("the example has no line of disk_mib that is replaced")
	}
}
