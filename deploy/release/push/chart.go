package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"go.yaml.in/yaml/v3"
)

// chartDirectory is that of the chart in a release.
const chartDirectory = "share/sandbox/helm/sandbox/"

// Media types of a chart in a registry, which are Helm's.
const (
	chartConfig  types.MediaType = "application/vnd.cncf.helm.config.v1+json"
	chartContent types.MediaType = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
)

var (
	chartVersion = regexp.MustCompile(`(?m)^version: .*$`)
	appVersion   = regexp.MustCompile(`(?m)^appVersion: .*$`)
	ownImage     = regexp.MustCompile(`\bsandbox/([a-z-]+):dev\b`)
)

// chartOf returns the chart as an artifact of a registry: with the release's version, and with the
// images that are pushed as its values.
func chartOf(r *release, registry string) (v1.Image, error) {
	tag := tagOf(r.version)
	var files []file
	var metadata map[string]any
	for _, name := range slices.Sorted(maps.Keys(r.files)) {
		inChart, ok := strings.CutPrefix(name, chartDirectory)
		if !ok {
			continue
		}
		content := r.files[name]
		switch inChart {
		case "Chart.yaml":
			content = chartVersion.ReplaceAll(content, []byte("version: "+tag))
			content = appVersion.ReplaceAll(content, []byte(`appVersion: "`+tag+`"`))
			if err := yaml.Unmarshal(content, &metadata); err != nil {
				return nil, err
			}
		case "values.yaml":
			content = ownImage.ReplaceAll(content, []byte(registry+"/$1:"+tag))
		}
		files = append(files, file{"sandbox/" + inChart, 0o644, content})
	}
	if metadata == nil {
		return nil, fmt.Errorf("the archive has no %sChart.yaml", chartDirectory)
	}
	packed, err := pack(files, r.made)
	if err != nil {
		return nil, err
	}
	var compressed bytes.Buffer
	writer := gzip.NewWriter(&compressed)
	if _, err := writer.Write(packed); err != nil {
		return nil, err
	}
	if err := writer.Close(); err != nil {
		return nil, err
	}
	config, err := json.Marshal(metadata)
	if err != nil {
		return nil, err
	}
	return partial.CompressedToImage(&artifact{config, static.NewLayer(compressed.Bytes(), chartContent)})
}

// artifact is content with a configuration that is none of a container.
type artifact struct {
	config  []byte
	content v1.Layer
}

func (a *artifact) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }

func (a *artifact) RawConfigFile() ([]byte, error) { return a.config, nil }

func (a *artifact) RawManifest() ([]byte, error) {
	digest, size, err := v1.SHA256(bytes.NewReader(a.config))
	if err != nil {
		return nil, err
	}
	layer, err := partial.Descriptor(a.content)
	if err != nil {
		return nil, err
	}
	return json.Marshal(v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1,
		Config: v1.Descriptor{MediaType: chartConfig, Digest: digest, Size: size}, Layers: []v1.Descriptor{*layer},
	})
}

func (a *artifact) LayerByDigest(digest v1.Hash) (partial.CompressedLayer, error) {
	if own, err := a.content.Digest(); err != nil || own != digest {
		return nil, errors.Join(err, fmt.Errorf("no layer %s", digest))
	}
	return a.content, nil
}
