package mcp

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	sandbox "sandbox.internal/clients/go"
)

const (
	// imagesPatience is how long tools/list waits for the images of the service.
	imagesPatience = 2 * time.Second
	// maxShown and maxShownBytes bound the images that a description or an error shows.
	maxShown      = 10
	maxShownBytes = 400
)

var (
	// reference is the name of an image that is shown. Other names could be sentences to a model.
	reference = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:/@-]{0,127}$`)
	// infrastructure are images of the service itself: no command runs in them.
	infrastructure = regexp.MustCompile(`(^|/)(execd|egress|task-executor)(:|@|$)`)
)

// withImages adds to the answer to tools/list which images the service has, in the description of
// the image of a sandbox. The answer is then for the caller alone, who may see them.
func (t *tools) withImages(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, request mcp.Request) (mcp.Result, error) {
		result, err := next(ctx, method, request)
		list, ok := result.(*mcp.ListToolsResult)
		if err != nil || !ok || list == nil {
			return result, err
		}
		list.CacheScope = "private"
		i := slices.IndexFunc(list.Tools, func(tool *mcp.Tool) bool { return tool.Name == createTool })
		if i < 0 {
			return list, nil
		}
		schema, ok := list.Tools[i].InputSchema.(*jsonschema.Schema)
		if names := t.images(ctx); ok && names != "" {
			// The tool is that of all callers.
			schema, tool := schema.CloneSchemas(), *list.Tools[i]
			schema.Properties[imageField].Description += "; on the service: " + names
			tool.InputSchema = schema
			list.Tools[i] = &tool
		}
		return list, nil
	}
}

// images returns the names of the images of the service, empty where the caller may not see them.
func (t *tools) images(ctx context.Context) string {
	ctx, end := bind(ctx)
	defer end()
	ctx, cancel := context.WithTimeout(ctx, imagesPatience)
	defer cancel()
	client, err := t.client(ctx)
	if err != nil {
		return ""
	}
	images, err := client.Images.List(ctx)
	if err != nil {
		return ""
	}
	return joined(images)
}

// joined returns the names of images that a sandbox can be made of, in order, within bounds.
func joined(images []sandbox.StoredImage) string {
	var names []string
	for _, image := range images {
		for _, name := range image.Names {
			if reference.MatchString(name) && !infrastructure.MatchString(name) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	shown, size := 0, 0
	for shown < min(len(names), maxShown) && size+len(names[shown]) <= maxShownBytes {
		size += len(names[shown])
		shown++
	}
	text := strings.Join(names[:shown], ", ")
	if more := len(names) - shown; more > 0 {
		text = fmt.Sprintf("%s and %d more", text, more)
	}
	return text
}

// suggest adds to an error which images the engine has, where the caller may see them.
func suggest(ctx context.Context, client *sandbox.Client, err error) error {
	images, listing := client.Images.List(ctx)
	if names := joined(images); listing == nil && names != "" {
		return fmt.Errorf("%w\nimages that need no pull: %s", err, names)
	}
	return err
}
