package box

import (
	"sandbox.internal/runtime/engine"
	"sandbox.internal/server/box/internal/daemon"
	"sandbox.internal/server/lifecycle"
)

// Unopened returns a Containers of which nothing is proved and nothing made available.
func Unopened(options Options) *Containers {
	return &Containers{options: options, daemons: daemon.New()}
}

// With sets what the engine has said of itself.
func (c *Containers) With(info engine.Info) *Containers {
	c.info = info
	return c
}

// ContainerSpec is what a sandbox's container is made of.
var ContainerSpec = (*Containers).containerSpec

// Translated is what a caller gets of an engine's error.
func Translated(err error) error { return translated(err) }

// WrongTarget is what a launch reports of an engine's error about where volumes are mounted.
func WrongTarget(volumes []lifecycle.Volume, err error) error { return wrongTarget(volumes, err) }
