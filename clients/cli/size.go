package cli

import (
	"regexp"
	"strings"
)

// sizeParts are a number, and a unit in any of the ways in which people write one.
var sizeParts = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?) *([kKmMgGtT]?)([iI]?)([bB]?)$`)

// memorySize returns an amount of memory as the contract has it. The contract's own units are left
// as they are (512Mi, and 1G for a thousand million); of docker's, 512m and 1g are binary; 512MB is
// decimal and 512MiB binary. What is no size at all is the service's to refuse.
func memorySize(text string) (string, error) {
	parts := sizeParts.FindStringSubmatch(strings.TrimSpace(text))
	if parts == nil {
		if text == "" {
			return "", nil
		}
		return "", usageErrorf("memory: must be a number of bytes with a unit, such as 512Mi or 1Gi, not %q", text)
	}
	number, unit, binary, bytes := parts[1], parts[2], parts[3] != "", parts[4] != ""
	switch {
	case unit == "":
		return "", usageErrorf("memory: %q has no unit: is it %sMi?", text, number)
	case !binary && !bytes:
		// Of single letters the contract has k, M, G and T, all decimal.
		binary = unit != "k" && unit == strings.ToLower(unit) || unit == "K"
	}
	if unit = strings.ToUpper(unit); binary {
		return number + unit + "i", nil
	}
	if unit == "K" {
		unit = "k"
	}
	return number + unit, nil
}
