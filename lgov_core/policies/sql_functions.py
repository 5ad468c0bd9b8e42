"""Functions that only compute, by dialect: what read_only lets through although the parser has no class for it."""

from __future__ import annotations

from typing import Final


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SQLITE: Final = _words(
    "abs acos acosh asin asinh atan atan2 atanh avg ceil ceiling char changes coalesce concat concat_ws cos cosh"
    " count cume_dist date datetime degrees dense_rank exp first_value floor format glob group_concat hex if ifnull"
    " iif instr json json_array json_array_length json_each json_error_position json_extract json_group_array"
    " json_group_object json_insert json_object json_patch json_pretty json_quote json_remove json_replace json_set"
    " json_tree json_type json_valid julianday lag last_insert_rowid last_value lead length like likelihood likely"
    " ln log log10 log2 lower ltrim max median min mod nth_value ntile nullif octet_length percent_rank percentile"
    " pi pow power printf quote radians random randomblob rank replace round row_number rtrim sign sin sinh soundex"
    " sqrt stddev string_agg strftime substr substring subtype sum tan tanh time timediff total total_changes trim"
    " trunc typeof unhex unicode unistr unixepoch unlikely upper zeroblob generate_series bm25 highlight snippet"
)
_POSTGRES: Final = _words(
    "age array_agg array_append array_cat array_dims array_fill array_length array_lower array_ndims array_position"
    " array_positions array_prepend array_remove array_replace array_to_json array_to_string array_to_tsvector"
    " array_upper ascii bit_length bool_and bool_or btrim cardinality cbrt chr clock_timestamp concat concat_ws"
    " convert_from convert_to corr covar_pop covar_samp daterange date_add date_bin date_part date_subtract decode"
    " div encode erf every factorial format gcd generate_series generate_subscripts host initcap int4range int8range"
    " isempty isfinite json_agg json_array_elements json_array_elements_text json_array_length json_build_array"
    " json_build_object json_each json_each_text json_extract_path json_extract_path_text json_object"
    " json_object_agg json_object_keys json_populate_record json_strip_nulls json_to_record json_to_recordset"
    " json_typeof jsonb_agg jsonb_array_elements jsonb_array_elements_text jsonb_array_length jsonb_build_array"
    " jsonb_build_object jsonb_each jsonb_each_text jsonb_extract_path jsonb_extract_path_text jsonb_insert"
    " jsonb_object jsonb_object_agg jsonb_object_keys jsonb_path_exists jsonb_path_match jsonb_path_query"
    " jsonb_path_query_array jsonb_path_query_first jsonb_pretty jsonb_set jsonb_strip_nulls jsonb_to_record"
    " jsonb_to_recordset jsonb_typeof justify_days justify_hours justify_interval lcm lower_inc lpad make_date"
    " make_interval make_time make_timestamp make_timestamptz md5 min_scale mode netmask now num_nonnulls num_nulls"
    " numrange octet_length overlay percentile_cont percentile_disc phraseto_tsquery plainto_tsquery position"
    " quote_ident quote_literal quote_nullable random range_agg regexp_count regexp_instr regexp_like regexp_match"
    " regexp_matches regexp_replace regexp_split_to_array regexp_split_to_table regexp_substr regr_slope"
    " regr_intercept regr_r2 reverse row_to_json rpad scale sha224 sha256 sha512 similarity split_part starts_with"
    " statement_timestamp string_to_array string_to_table strpos timeofday to_ascii to_char to_date to_hex to_json"
    " to_jsonb to_number to_timestamp to_tsquery to_tsvector transaction_timestamp translate trim_array trim_scale"
    " trunc ts_headline ts_rank ts_rank_cd tsrange tstzrange unaccent unnest upper_inc websearch_to_tsquery"
    " width_bucket word_similarity st_area st_asgeojson st_astext st_buffer st_centroid st_contains st_distance"
    " st_distancesphere st_dwithin st_geogpoint st_geomfromtext st_intersects st_length st_makepoint st_point"
    " st_setsrid st_transform st_within st_x st_y"
)
_MYSQL: Final = _words(
    "adddate addtime aes_decrypt aes_encrypt bin bin_to_uuid bit_count bit_length char_length character_length conv"
    " convert_tz crc32 curdate curtime date_add date_format date_sub dayname dayofmonth dayofweek dayofyear elt"
    " export_set extractvalue field find_in_set format format_bytes from_base64 from_days from_unixtime get_format"
    " group_concat grouping hex inet6_aton inet6_ntoa inet_aton inet_ntoa insert instr interval is_ipv4 is_ipv6"
    " is_uuid isnull json_array json_arrayagg json_contains json_contains_path json_depth json_keys json_length"
    " json_merge_patch json_merge_preserve json_objectagg json_overlaps json_pretty json_search json_table json_type"
    " json_unquote json_valid json_value last_day locate lpad ltrim make_set makedate maketime mid monthname now oct"
    " ord period_add period_diff position quarter quote rand regexp_instr regexp_like regexp_replace regexp_substr"
    " rpad sec_to_time sha1 sha2 soundex space st_distance_sphere str_to_date strcmp subdate substring_index subtime"
    " sysdate time_format time_to_sec timediff timestampadd timestampdiff to_base64 to_days to_seconds truncate"
    " unhex unix_timestamp utc_date utc_time utc_timestamp uuid uuid_to_bin week weekday weekofyear weight_string"
    " yearweek"
)
_TSQL: Final = _words(
    "abs acos ascii asin atan atn2 avg binary_checksum ceiling char charindex checksum checksum_agg choose concat"
    " concat_ws convert cos cot count_big cume_dist current_timestamp datalength date_bucket dateadd datediff"
    " datediff_big datefromparts datename datepart datetime2fromparts datetimefromparts datetimeoffsetfromparts"
    " datetrunc day degrees dense_rank difference eomonth exp first_value floor format generate_series getdate"
    " getutcdate greatest grouping grouping_id hashbytes iif isdate isjson isnull isnumeric json_array json_modify"
    " json_object json_path_exists json_query json_value lag last_value lead least left len log log10 lower ltrim"
    " month nchar newid ntile nullif openjson parse parsename patindex percent_rank percentile_cont percentile_disc"
    " pi power quotename radians rand rank replace replicate reverse right round row_number rowcount_big rtrim sign"
    " sin smalldatetimefromparts soundex space sqrt square stdev stdevp str string_agg string_escape string_split"
    " stuff substring switchoffset sysdatetime sysdatetimeoffset sysutcdatetime tan timefromparts todatetimeoffset"
    " translate trim try_cast try_convert try_parse unicode upper var varp year"
)
_ORACLE: Final = _words(
    "abs add_months ascii asciistr bitand cardinality chr coalesce collect compose concat convert corr cosh"
    " cume_dist current_date dbtimezone decode dense_rank dump empty_blob empty_clob extract first_value from_tz"
    " greatest group_id grouping_id hextoraw initcap instr instrb json_array json_arrayagg json_exists json_object"
    " json_objectagg json_query json_table json_value lag last_day last_value lead least length lengthb listagg"
    " lnnvl localtimestamp lower lpad ltrim median mod months_between nanvl new_time next_day nls_initcap nls_lower"
    " nls_upper nlssort nth_value ntile nullif numtodsinterval numtoyminterval nvl nvl2 ora_hash percent_rank"
    " percentile_cont percentile_disc power rank ratio_to_report rawtohex regexp_count regexp_instr regexp_like"
    " regexp_replace regexp_substr remainder replace round rpad rtrim sessiontimezone sign sinh soundex stats_mode"
    " stddev stddev_pop stddev_samp substr substrb sys_connect_by_path sys_extract_utc sys_guid sysdate systimestamp"
    " tanh to_binary_double to_char to_clob to_date to_dsinterval to_nchar to_number to_single_byte to_timestamp"
    " to_timestamp_tz to_yminterval translate treat trim trunc tz_offset unistr upper validate_conversion var_pop"
    " var_samp variance vsize width_bucket xmlagg xmlelement xmlforest"
)
_SNOWFLAKE: Final = _words(
    "add_months approx_percentile approx_top_k array_agg array_append array_cat array_compact array_construct"
    " array_construct_compact array_contains array_distinct array_except array_flatten array_generate_range"
    " array_insert array_intersection array_max array_min array_position array_prepend array_remove array_reverse"
    " array_size array_slice array_sort array_sum array_to_string array_unique_agg arrays_overlap arrays_to_object"
    " as_array as_char as_date as_double as_integer as_object as_varchar base64_encode base64_decode_string bitand"
    " bitor bitxor boolor_agg booland_agg charindex check_json conditional_change_event conditional_true_event"
    " contains convert_timezone count_if date_from_parts dateadd datediff dayname decode div0 div0null editdistance"
    " endswith equal_null flatten get get_path greatest_ignore_nulls h3_latlng_to_cell hash hash_agg haversine hll"
    " iff ilike initcap insert is_array is_boolean is_date is_integer is_null_value is_object jarowinkler_similarity"
    " json_extract_path_text kurtosis last_day least_ignore_nulls listagg max_by md5_hex median min_by mode"
    " monthname months_between next_day nullifzero nvl nvl2 object_agg object_construct object_construct_keep_null"
    " object_delete object_insert object_keys object_pick parse_json percentile_cont percentile_disc previous_day"
    " ratio_to_report regexp_count regexp_instr regexp_like regexp_substr regexp_substr_all regr_slope rlike rpad"
    " seq1 seq2 seq4 seq8 sha2_hex skew sparse space split split_part split_to_table square startswith st_distance"
    " st_makepoint strip_null_value strtok strtok_to_array time_from_parts time_slice timeadd timediff"
    " timestamp_from_parts timestamp_ltz_from_parts timestamp_ntz_from_parts timestampadd timestampdiff to_array"
    " to_binary to_boolean to_char to_date to_decimal to_double to_geography to_json to_number to_object to_time"
    " to_timestamp to_timestamp_ltz to_timestamp_ntz to_timestamp_tz to_varchar to_variant try_cast try_parse_json"
    " try_to_boolean try_to_date try_to_decimal try_to_double try_to_number try_to_time try_to_timestamp"
    " try_to_timestamp_ntz typeof uniform uuid_string width_bucket zeroifnull zipf"
)
_BIGQUERY: Final = _words(
    "any_value approx_count_distinct approx_quantiles approx_top_count approx_top_sum array_agg array_concat"
    " array_concat_agg array_length array_reverse array_to_string bit_count bool byte_length char_length"
    " code_points_to_string contains_substr countif date_add date_diff date_from_unix_date date_sub date_trunc"
    " datetime_add datetime_diff datetime_sub datetime_trunc edit_distance ends_with extract farm_fingerprint"
    " first_value float64 format format_date format_datetime format_time format_timestamp from_base64 from_hex"
    " generate_array generate_date_array generate_timestamp_array generate_uuid ieee_divide initcap instr int64"
    " is_inf is_nan json_array json_extract json_extract_array json_extract_scalar json_extract_string_array"
    " json_keys json_object json_query json_query_array json_type json_value json_value_array last_day lax_bool"
    " lax_float64 lax_int64 lax_string length logical_and logical_or lpad ltrim max_by md5 min_by net.host normalize"
    " normalize_and_casefold nth_value octet_length parse_bignumeric parse_date parse_datetime parse_json"
    " parse_numeric parse_time parse_timestamp percentile_cont percentile_disc range_bucket regexp_contains"
    " regexp_extract regexp_extract_all regexp_instr regexp_replace regexp_substr safe_add safe_cast"
    " safe_convert_bytes_to_string safe_divide safe_multiply safe_negate safe_subtract sha256 sha512 soundex split"
    " st_asgeojson st_astext st_distance st_dwithin st_geogfromtext st_geogpoint starts_with string strpos substr"
    " time_add time_diff time_sub time_trunc timestamp timestamp_add timestamp_diff timestamp_micros"
    " timestamp_millis timestamp_seconds timestamp_sub timestamp_trunc to_base64 to_code_points to_hex to_json"
    " to_json_string translate unicode unix_date unix_micros unix_millis unix_seconds unnest"
)
_DUCKDB: Final = _words(
    "aggregate apply approx_count_distinct approx_quantile arg_max arg_min array_aggr array_agg array_append"
    " array_concat array_contains array_distinct array_extract array_filter array_has array_has_all array_has_any"
    " array_length array_prepend array_reduce array_reverse array_slice array_sort array_to_string array_transform"
    " array_unique arg_max_null bar base64 bin bit_count bool_and bool_or cardinality century constant_or_null"
    " contains date_diff date_part date_sub date_trunc datediff datepart datesub datetrunc dayname dayofmonth"
    " dayofweek dayofyear decade editdist3 element_at ends_with entropy enum_range epoch epoch_ms epoch_us era even"
    " factorial favg filter first flatten format fsum gcd generate_series generate_subscripts"
    " greatest_common_divisor hamming hash histogram ifnull isfinite isinf isnan jaccard jaro_similarity"
    " jaro_winkler_similarity json_array_length json_contains json_extract json_extract_path json_extract_path_text"
    " json_extract_string json_group_array json_group_object json_keys json_object json_structure json_type"
    " json_valid julian kahan_sum kurtosis last last_day lcm least_common_multiple left_grapheme len levenshtein"
    " list list_aggr list_aggregate list_any_value list_append list_apply list_avg list_concat list_contains"
    " list_count list_cosine_similarity list_distance list_distinct list_element list_extract list_filter list_first"
    " list_has list_has_all list_has_any list_histogram list_last list_max list_median list_min list_pack"
    " list_position list_prepend list_product list_reduce list_resize list_reverse list_reverse_sort list_slice"
    " list_sort list_sum list_transform list_unique list_value list_where list_zip lpad mad make_date make_time"
    " make_timestamp map map_entries map_extract map_from_entries map_keys map_values max_by mean median min_by"
    " mismatches mode monthname nextafter nfc_normalize now ord parse_dirname parse_filename percentile_cont"
    " percentile_disc prefix printf product quantile quantile_cont quantile_disc quarter range reduce regexp_escape"
    " regexp_extract regexp_extract_all regexp_full_match regexp_matches regexp_replace regexp_split_to_array"
    " regexp_split_to_table reservoir_quantile reverse right_grapheme row rpad sem setseed signbit skewness"
    " split_part starts_with str_split str_split_regex strftime string_split string_split_regex string_to_array"
    " strip_accents strlen strpos strptime struct_extract struct_insert struct_pack suffix sumkahan time_bucket"
    " timezone to_base64 to_days to_hours to_json to_milliseconds to_minutes to_months to_seconds to_timestamp"
    " to_years today translate trim_list try_strptime typeof unbin unicode union_extract union_tag union_value"
    " unnest unpivot_list url_decode url_encode uuid var_pop var_samp week weekday weekofyear yearweek"
)
_CLICKHOUSE: Final = _words(
    "adddays addhours addminutes addmonths addquarters addseconds addweeks addyears age any anyheavy anylast argmax"
    " argmin array arrayavg arrayall arraycompact arrayconcat arraycount arraycumsum arraydifference arraydistinct"
    " arrayelement arrayenumerate arrayexists arrayfilter arrayfirst arrayfirstindex arrayflatten arrayintersect"
    " arrayjoin arraylast arraymap arraymax arraymin arraypopback arraypopfront arrayproduct arraypushback"
    " arraypushfront arrayreduce arrayresize arrayreverse arrayreversesort arrayslice arraysort arraystringconcat"
    " arraysum arrayuniq arrayzip assumenotnull avgif avgweighted bar base64decode base64encode bitand bitcount"
    " bitor bitxor boundingratio cityhash64 coalesce concat concatwithseparator corr countequal countif"
    " countsubstrings cutquerystring cuturlparameter dateadd date_add datediff date_diff datename date_sub datesub"
    " datetrunc date_trunc decodeurlcomponent deltasum domain domainwithoutwww e empty emptyarraytosingle"
    " encodeurlcomponent endswith entropy exp extract extractall extractallgroups extracturlparameter"
    " extracturlparameters farmhash64 firstsignificantsubdomain flatten formatdatetime formatreadablequantity"
    " formatreadablesize formatreadabletimedelta formatrow fragment fromunixtimestamp fromunixtimestamp64milli"
    " geodistance greatcircledistance grouparray grouparraydistinct grouparraysample groupbitand groupbitor"
    " groupuniqarray has hasall hasany hassubstr hastoken halfmd5 hex histogram if ifnull ilike indexof"
    " initializeaggregation intdiv intdivorzero inthash32 inthash64 isfinite isinfinite isnan isnotnull isnull"
    " isvalidutf8 jsonextract jsonextractarrayraw jsonextractbool jsonextractfloat jsonextractint jsonextractkeys"
    " jsonextractkeysandvalues jsonextractraw jsonextractstring jsonextractuint jsonhas jsonlength jsontype"
    " json_exists json_query json_value kurtpop laginframe leadinframe least length lengthutf8 levenshteindistance"
    " like linear_regression locate log10 log2 lowerutf8 makedate makedatetime map mapcontains mapkeys mapvalues"
    " match maxif maxmap md5 median medianexact mediantdigest minif minmap modulo monthname moving_average multiif"
    " multifuzzymatchany multimatchany multisearchany multisearchanycaseinsensitive negate neighbor ngramdistance"
    " ngramsearch not notempty notlike now now64 nullif number numbers numbers_mt nth_value parsedatetime"
    " parsedatetimebesteffort parsedatetimebesteffortornull parsedatetimeornull path plus position"
    " positioncaseinsensitive positionutf8 pow protocol quantile quantileexact quantileexactif quantileif"
    " quantiletdigest quantiles quantilesexact quantiletiming querystring rand rand32 rand64 randomstring range"
    " rankcorr regexpextract repeat replace replaceall replaceone replaceregexpall replaceregexpone retention"
    " reverse reverseutf8 round roundage roundbankers rounddown runningaccumulate runningdifference sequencecount"
    " sequencematch sigmoid simplejsonextractint simplejsonextractstring simplejsonhas siphash64 skewpop splitbychar"
    " splitbyregexp splitbystring splitbywhitespace startswith stddevpop stddevsamp substring substringindex"
    " substringutf8 subtractdays subtracthours subtractminutes subtractmonths subtractweeks subtractyears sumif"
    " summap summapif sumornull sumwithoverflow timediff timeslot timeslots timezone timestamp_diff tobool todate"
    " todate32 todateornull todatetime todatetime64 todatetimeornull todayofmonth todayofweek todayofyear"
    " todecimal128 todecimal32 todecimal64 tofixedstring tofloat32 tofloat64 tofloat64ornull tofloat64orzero tohour"
    " toint128 toint16 toint32 toint32ornull toint32orzero toint64 toint64ornull toint64orzero toint8 tointervalday"
    " tointervalhour tointervalminute tointervalmonth toisoweek toisoyear tojsonstring tolastdayofmonth"
    " tolowcardinality tominute tomonday tomonth tonullable toquarter torelativedaynum tosecond tostartofday"
    " tostartoffifteenminutes tostartoffiveminutes tostartofhour tostartofinterval tostartofisoyear tostartofminute"
    " tostartofmonth tostartofquarter tostartofsecond tostartoftenminutes tostartofweek tostartofyear tostring"
    " totimezone totypename touint16 touint32 touint32orzero touint64 touint64ornull touint64orzero touint8"
    " tounixtimestamp touuid toweek toyear toyearweek toyyyymm toyyyymmdd toyyyymmddhhmmss today topk topkweighted"
    " topleveldomain transform translate trimboth trimleft trimright tuple tupleelement unhex uniq uniqcombined"
    " uniqcombined64 uniqexact uniqexactif uniqhll12 uniqif upperutf8 urlhierarchy urlpathhierarchy varpop varsamp"
    " visitparamextractstring visitparamextractint windowfunnel xxhash64 yesterday zeros"
)
_SPARK: Final = _words(
    "add_months aggregate any_value approx_count_distinct approx_percentile array array_agg array_append"
    " array_compact array_contains array_distinct array_except array_insert array_intersect array_join array_max"
    " array_min array_position array_prepend array_remove array_repeat array_size array_sort array_union"
    " arrays_overlap arrays_zip ascii base64 bin bit_count bit_length bool_and bool_or bround btrim cardinality cbrt"
    " char charindex chr collect_list collect_set concat_ws contains conv corr count_if crc32 current_timestamp"
    " date_add date_diff date_format date_from_unix_date date_part date_sub date_trunc dateadd datediff datepart"
    " dayname dayofmonth dayofweek dayofyear decode element_at elt encode endswith equal_null every exists explode"
    " explode_outer exp extract factorial filter find_in_set first flatten floor forall format_number format_string"
    " from_csv from_json from_unixtime from_utc_timestamp get get_json_object greatest grouping_id hash hex"
    " histogram_numeric hour hypot ifnull ilike initcap inline inline_outer instr isnan isnotnull isnull"
    " json_array_length json_object_keys json_tuple kurtosis last last_day least len levenshtein listagg locate"
    " log1p log2 lpad luhn_check make_date make_timestamp map map_concat map_contains_key map_entries map_filter"
    " map_from_arrays map_from_entries map_keys map_values map_zip_with mask max_by md5 mean median min_by minute"
    " mode month monthname months_between named_struct nanvl negative next_day now nullif nvl nvl2 octet_length"
    " overlay parse_json parse_url percentile percentile_approx percentile_cont pmod posexplode posexplode_outer"
    " position positive printf quarter radians rand randn reduce regexp regexp_count regexp_extract"
    " regexp_extract_all regexp_instr regexp_like regexp_replace regexp_substr regr_slope repeat replace reverse"
    " rint rlike rpad schema_of_json second sentences sequence sha sha1 sha2 shiftleft shiftright shuffle size"
    " skewness slice some sort_array soundex space split split_part stack startswith str_to_map string struct"
    " substring_index timestamp_micros timestamp_millis timestamp_seconds timestampadd timestampdiff to_char to_csv"
    " to_date to_json to_number to_timestamp to_unix_timestamp to_utc_timestamp transform transform_keys"
    " transform_values translate trunc try_add try_cast try_divide try_element_at try_subtract try_sum try_to_number"
    " try_to_timestamp try_variant_get typeof unbase64 unhex unix_date unix_millis unix_seconds unix_timestamp uuid"
    " variant_get weekday weekofyear width_bucket window window_time xxhash64 zip_with"
)
_TRINO: Final = _words(
    "all_match any_match approx_distinct approx_most_frequent approx_percentile arbitrary array_agg array_average"
    " array_distinct array_except array_frequency array_histogram array_intersect array_join array_max array_min"
    " array_position array_remove array_sort array_sum array_union arrays_overlap at_timezone bar beta_cdf bit_count"
    " bitwise_and bitwise_or bool_and bool_or cardinality cbrt checksum chr codepoint combinations concat_ws"
    " contains corr cosine_similarity count_if covar_pop crc32 date_add date_diff date_format date_parse date_trunc"
    " day_of_month day_of_week day_of_year e element_at entropy every filter flatten format format_datetime"
    " format_number from_base64 from_hex from_iso8601_date from_iso8601_timestamp from_unixtime from_utf8"
    " geometric_mean great_circle_distance hamming_distance histogram hour infinity is_finite is_infinite"
    " is_json_scalar is_nan json_array json_array_contains json_array_get json_array_length json_exists json_extract"
    " json_extract_scalar json_format json_object json_parse json_query json_size json_value last_day_of_month"
    " levenshtein_distance listagg log10 log2 lpad map map_agg map_concat map_entries map_filter map_from_entries"
    " map_keys map_union map_values map_zip_with max_by md5 min_by minute month multimap_agg nan ngrams none_match"
    " normalize now numeric_histogram parse_datetime parse_duration percent_rank pi position power quarter rand"
    " random reduce reduce_agg regexp_count regexp_extract regexp_extract_all regexp_like regexp_position"
    " regexp_replace regexp_split repeat reverse rpad second sequence sha1 sha256 sha512 shuffle slice split"
    " split_part split_to_map split_to_multimap st_area st_asgeojson st_astext st_contains st_distance"
    " st_geometryfromtext st_point starts_with strpos substr timezone_hour to_base64 to_hex to_iso8601"
    " to_milliseconds to_unixtime to_utf8 transform transform_keys transform_values translate trim_array truncate"
    " typeof upper url_decode url_encode url_extract_host url_extract_parameter url_extract_path url_extract_query"
    " uuid week week_of_year width_bucket with_timezone xxhash64 year_of_week zip zip_with"
)
_REDSHIFT: Final = _POSTGRES | _words(
    "add_months bpcharcmp charindex convert_timezone date_cmp dateadd datediff decode dlog10 getdate"
    " json_extract_array_element_text json_parse json_serialize is_valid_json last_day listagg median months_between"
    " next_day nvl nvl2 ratio_to_report regexp_count regexp_instr regexp_substr replace sysdate timezone to_varchar"
    " trunc"
)

#: By dialect; a dialect that is not here has the functions of its relative below, or none.
_BY_DIALECT: Final = {
    "sqlite": _SQLITE,
    "postgres": _POSTGRES,
    "redshift": _REDSHIFT,
    "mysql": _MYSQL,
    "tsql": _TSQL,
    "oracle": _ORACLE,
    "snowflake": _SNOWFLAKE,
    "bigquery": _BIGQUERY,
    "duckdb": _DUCKDB | _POSTGRES,
    "clickhouse": _CLICKHOUSE,
    "spark": _SPARK,
    "trino": _TRINO,
}
_RELATIVES: Final = {
    "athena": "trino",
    "databricks": "spark",
    "doris": "mysql",
    "exasol": "oracle",
    "fabric": "tsql",
    "hive": "spark",
    "materialize": "postgres",
    "presto": "trino",
    "risingwave": "postgres",
    "singlestore": "mysql",
    "starrocks": "mysql",
}


def is_harmless(function: str, dialect: str) -> bool:
    """Whether ``function`` (lower case), unknown to the parser, is known to only compute."""
    return function in _BY_DIALECT.get(_RELATIVES.get(dialect, dialect), frozenset())
