package cli

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"runtime/debug"
	"time"

	"sandbox.internal/gen/lifecycle"
)

// versionTimeout bounds the question to the service: who asks for a version does not
// want to wait for a service that is not there.
const versionTimeout = 3 * time.Second

func setupVersion(t *tool, _ *flag.FlagSet) func(context.Context) error { return t.version }

// version prints both versions. A service that does not answer is reported and is no
// failure: the tool's own version was asked for as well.
func (t *tool) version(ctx context.Context) error {
	c, err := t.connect()
	if err != nil {
		return err
	}
	defer c.close()
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()

	table := newTable(t.stdout)
	_, _ = fmt.Fprintf(table, "sandbox\t%s\n", describeBuild(ownBuild()))
	response, err := c.service.GetVersion(ctx)
	service, err := decode[lifecycle.Version](response, err, http.StatusOK)
	if err != nil {
		_, _ = fmt.Fprintf(table, "service\tno answer: %v\n", err)
	} else {
		_, _ = fmt.Fprintf(table, "service\t%s at %s\n", describeBuild(service), c.url)
	}
	return table.Flush()
}

// ownBuild describes this program in the words of the contract.
func ownBuild() lifecycle.Version {
	build := lifecycle.Version{Version: "devel"}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return build
	}
	build.GoVersion = info.GoVersion
	if v := info.Main.Version; v != "" && v != "(devel)" {
		build.Version = v
	}
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" {
			build.Commit = setting.Value
		}
	}
	return build
}

func describeBuild(v lifecycle.Version) string {
	text := v.Version
	if v.Commit != "" {
		text += " (" + v.Commit[:min(len(v.Commit), 12)] + ")"
	}
	return text + " " + v.GoVersion
}
