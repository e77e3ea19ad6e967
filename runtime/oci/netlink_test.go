package oci_test

import (
	"testing"

	"sandbox.internal/runtime/engine"
)

// TestNetlinkIsBounded: a container whose netlink sockets hold more than it may is ended as one without memory, also when it has joined the network
// of another one, which goes on; one whose sockets hold less goes on.
func TestNetlinkIsBounded(t *testing.T) {
	s := newSite(t, "crun")
	e := s.mustOpen(t)
	defer closeEngine(t, e)
	imageID := loadProbe(t, e)
	owner := probe(imageID, "sleep")
	owner.Network, owner.Publish, owner.PublishIP = engine.NetworkOwn, []int{8080}, "127.0.0.1"
	ownerID := start(t, e, owner)
	joined := probe(imageID, "hoard", "64")
	joined.Network, joined.Join = engine.NetworkOwn, owner.Name
	modest := probe(imageID, "hoard", "8")
	modest.Network, modest.Publish, modest.PublishIP = engine.NetworkOwn, []int{8080}, "127.0.0.1"
	modestID := start(t, e, modest)
	for name, spec := range map[string]engine.ContainerSpec{"joined": joined, "no network": probe(imageID, "hoard", "64")} {
		spec.Resources.MemoryBytes = 32 << 20
		if ended := waitEnd(t, e, start(t, e, spec)); ended.ExitCode != 137 || !ended.OOMKilled {
			t.Errorf("%s: it ended with %d, for its memory: %t", name, ended.ExitCode, ended.OOMKilled)
		}
	}
	for name, id := range map[string]string{"the owner of the network": ownerID, "the modest": modestID} {
		if found := inspect(t, e, id); found.Status != engine.StatusRunning {
			t.Errorf("%s is %s", name, found.Status)
		}
	}
	removeAll(t, e)
}
