package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"sandbox.internal/execd/files"
	"sandbox.internal/openapi/serve"
)

// parseMetadata reads the metadata of one file (schema UploadMetadata), which the guard has not
// seen: it is inside of a multipart body. What encoding/json lets pass is refused where a file
// could end up elsewhere than its sender thinks: a member that is there twice, one in other
// letters, text that is not UTF-8, and anything after the object.
func parseMetadata(text []byte) (files.UploadMeta, error) {
	var path, exact, owner, group *string
	var mode *int
	var symlink *bool
	members := map[string]any{
		"path": &path, "raw_path": &exact, "owner": &owner, "group": &group, "mode": &mode, "symlink": &symlink,
	}
	if err := parseMembers(text, members); err != nil {
		return files.UploadMeta{}, err
	}
	if value(path) == "" {
		return files.UploadMeta{}, serve.Invalid("body/metadata/path: is required")
	}
	target, err := exactPath("body/metadata", *path, exact)
	if err != nil {
		return files.UploadMeta{}, err
	}
	return files.UploadMeta{
		Path:       target,
		Symlink:    value(symlink),
		Permission: files.Permission{Owner: value(owner), Group: value(group), Mode: mode},
	}, nil
}

// parseMembers reads a JSON object that has no other members than these.
func parseMembers(text []byte, members map[string]any) error {
	malformed := func(err error) error {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = errors.New("unexpected end of the text")
		}
		return serve.Invalid("body/metadata: must be a JSON object: %v", err)
	}
	if !utf8.Valid(text) {
		return malformed(errors.New("invalid UTF-8"))
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	if token, err := decoder.Token(); err != nil {
		return malformed(err)
	} else if token != json.Delim('{') {
		return malformed(fmt.Errorf("text begins with %v", token))
	}
	seen := make(map[string]bool, len(members))
	for decoder.More() {
		token, err := decoder.Token()
		if err != nil {
			return malformed(err)
		}
		name := token.(string) // the decoder takes nothing else for a name
		member, known := members[name]
		switch {
		case !known:
			return serve.Invalid("body/metadata: unknown field %q", name)
		case seen[name]:
			return serve.Invalid("body/metadata/%s: must be given only once", name)
		}
		seen[name] = true
		err = decoder.Decode(member)
		var misfit *json.UnmarshalTypeError
		switch {
		case errors.As(err, &misfit):
			return serve.Invalid("body/metadata/%s: must be %s, not %s", name, wanted(member), misfit.Value)
		case err != nil:
			return malformed(err)
		}
	}
	if _, err := decoder.Token(); err != nil { // the closing brace
		return malformed(err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return malformed(errors.New("there is more after it"))
	}
	return nil
}

func wanted(member any) string {
	if _, ok := member.(**int); ok {
		return "a whole number"
	}
	return "a string"
}
