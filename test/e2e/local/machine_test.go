package local_test

import "sandbox.internal/test/e2e/lives/onlocal"

const (
	egressImage  = onlocal.EgressImage
	busyboxImage = onlocal.BusyboxImage
	baseImage    = onlocal.BaseImage
)

// machines are where the services under test keep what is their engines'.
type machines struct{ *onlocal.Machines }

func newMachines() *machines { return &machines{onlocal.New(*usual)} }

func (m *machines) of(instance string) machine { return machine{m.Of(instance)} }

type machine struct{ onlocal.Machine }
