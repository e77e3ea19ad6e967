package engine_test

import (
	"errors"
	"strings"
	"testing"

	"sandbox.internal/runtime/engine"
)

func TestCheck(t *testing.T) {
	mounts := func(list ...engine.Mount) engine.ContainerSpec { return engine.ContainerSpec{Mounts: list} }
	for name, test := range map[string]struct {
		spec engine.ContainerSpec
		want string // in the error; empty when there must be none
	}{
		"nothing":                 {engine.ContainerSpec{}, ""},
		"port":                    {engine.ContainerSpec{Publish: []int{1, 65535}}, ""},
		"impossible port":         {engine.ContainerSpec{Publish: []int{65536}}, "publish: port 65536"},
		"port 0":                  {engine.ContainerSpec{Publish: []int{0}}, "publish: port 0"},
		"published by none":       {engine.ContainerSpec{Publish: []int{80}, Network: engine.NetworkNone}, "publish: "},
		"published by the host":   {engine.ContainerSpec{Publish: []int{80}, Network: engine.NetworkHost}, "publish: "},
		"published by another":    {engine.ContainerSpec{Publish: []int{80}, Join: "a"}, "publish: "},
		"joined":                  {engine.ContainerSpec{Join: "a"}, ""},
		"unknown network":         {engine.ContainerSpec{Network: "bridge"}, `network: "bridge"`},
		"two networks":            {engine.ContainerSpec{Network: engine.NetworkHost, Join: "a"}, "network: "},
		"host path":               {mounts(engine.Mount{HostPath: "/srv", Target: "/data"}), ""},
		"relative host path":      {mounts(engine.Mount{HostPath: "srv", Target: "/data"}), "mount /data: container refused: host path"},
		"volume":                  {mounts(engine.Mount{Volume: "v", SubPath: "a/b", Target: "/data"}), ""},
		"directory":               {mounts(engine.Mount{Directory: "f", Target: "/data"}), ""},
		"relative target":         {mounts(engine.Mount{Volume: "v", Target: "data"}), "target"},
		"zero byte in target":     {mounts(engine.Mount{Volume: "v", Target: "/data\x00"}), "target"},
		"target is the root":      {mounts(engine.Mount{Volume: "v", Target: "/.."}), "target"},
		"no source":               {mounts(engine.Mount{Target: "/data"}), "source"},
		"two sources":             {mounts(engine.Mount{HostPath: "/srv", Volume: "v", Target: "/data"}), "source"},
		"sub path of the host":    {mounts(engine.Mount{HostPath: "/srv", SubPath: "sub", Target: "/data"}), "sub path"},
		"sub path of a directory": {mounts(engine.Mount{Directory: "f", SubPath: "sub", Target: "/data"}), "sub path"},
		"sub path upwards":        {mounts(engine.Mount{Volume: "v", SubPath: "../sub", Target: "/data"}), "sub path"},
		"absolute sub path":       {mounts(engine.Mount{Volume: "v", SubPath: "/sub", Target: "/data"}), "sub path"},
		"one target twice": {
			mounts(engine.Mount{Volume: "v", Target: "/data"}, engine.Mount{Volume: "w", Target: "/data/"}), "mount /data: there are two",
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := test.spec.Check()
			switch {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want != "" && (!errors.Is(err, engine.ErrInvalid) || !strings.Contains(err.Error(), test.want)):
				t.Errorf("got %v, want ErrInvalid with %q", err, test.want)
			}
		})
	}
}
