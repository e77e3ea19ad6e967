# The smallest image with a shell. Where no registry can be reached, scripts/images.sh makes its like from busybox-static.
FROM busybox:stable-musl
CMD ["sh"]
