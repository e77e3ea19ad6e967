package local_test

import "sandbox.internal/test/e2e/conformance/localengine"

const (
	egressImage  = localengine.EgressImage
	busyboxImage = localengine.BusyboxImage
	baseImage    = localengine.BaseImage
)

// machines are where the services under test keep what is their engines'.
type machines struct{ *localengine.Machines }

func newMachines() *machines { return &machines{localengine.New(*usual)} }

func (m *machines) of(instance string) machine { return machine{m.Of(instance)} }

type machine struct{ localengine.Machine }
