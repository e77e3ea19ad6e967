package cli

import (
	"context"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"sandbox.internal/clients/cli/internal/show"
	sandbox "sandbox.internal/clients/go"
	"sandbox.internal/internal/build"
)

// versionTimeout bounds the question to the service: who asks for a version does not
// want to wait for a service that is not there.
const versionTimeout = 3 * time.Second

// versions is what `version` prints.
type versions struct {
	Client  clientVersion    `json:"client"`
	Service *sandbox.Version `json:"service,omitempty"`
	URL     string           `json:"url"`
	Error   string           `json:"error,omitempty"` // why there is no service
}

// clientVersion is the build of this tool, in the words of the contract.
type clientVersion struct {
	Version   string `json:"version"`
	Commit    string `json:"commit"`
	GoVersion string `json:"goVersion"`
}

func versionCommand(t *tool) *cobra.Command {
	command := &cobra.Command{
		Use:     "version [flags]",
		Short:   "Print the version of this tool and of the service",
		Example: "  sandbox version -o json",
		Args:    arguments(0, 0, ""),
		RunE:    func(c *cobra.Command, _ []string) error { return t.version(c.Context()) },
	}
	t.registerOutput(command, "this tool's version")
	return command
}

// version prints both versions. A service that does not answer is reported and is no
// failure: the tool's own version was asked for as well.
func (t *tool) version(ctx context.Context) error {
	c, err := t.connect()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	own := ownBuild()
	result := versions{Client: clientVersion{own.Version, own.Commit, own.GoVersion}, URL: c.url}
	if service, err := c.client.Version(ctx); err != nil {
		result.Error = err.Error()
	} else {
		result.Service = &service
	}
	if t.Printer.Structured() {
		return t.ShowValue(result)
	}
	type part struct{ name, version string }
	service := "no answer: " + result.Error
	if result.Service != nil {
		service = describeBuild(*result.Service) + " at " + c.url
	}
	parts := []part{{"sandbox", describeBuild(own)}, {"service", service}}
	if t.Printer.Quiet || t.Printer.Format == show.FormatName {
		parts = []part{{own.Version, ""}}
	}
	columns := []show.Column[part]{{Value: func(p part) string { return p.name }},
		{Value: func(p part) string { return p.version }, Least: 1}}
	for _, p := range parts {
		if err := show.WriteRow(t.Printer, t.Stdout, show.CellsOf(t.Printer, columns, p), []int{len(p.name),
			show.Cells(p.version)}); err != nil {
			return err
		}
	}
	return nil
}

// ownBuild describes this program in the words of the contract.
func ownBuild() sandbox.Version {
	return sandbox.Version{
		Version: build.Version(), Commit: build.Commit(), GoVersion: runtime.Version(),
	}
}

func describeBuild(v sandbox.Version) string {
	text := v.Version
	if v.Commit != "" {
		text += " (" + v.Commit[:min(len(v.Commit), 12)] + ")"
	}
	return text + " " + v.GoVersion
}
