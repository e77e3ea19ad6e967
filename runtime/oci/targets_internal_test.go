package oci

import (
	"testing"

	"sandbox.internal/runtime/oci/images"
)

// TestManyLayers: an image with as many layers as the kernel takes gets no other one.
func TestManyLayers(t *testing.T) {
	const most = 500
	s := start{image: images.Image{Layers: make([]string, most)}}
	if layers, err := s.layers(); err != nil || len(layers) != most {
		t.Errorf("an image of %d layers has %d: %v", most, len(layers), err)
	}
}
